"""Recognises the format of a checkpoint and examines it."""

from __future__ import annotations

from ammeter.inspection import distributed, safetensors_file, torch_file
from ammeter.inspection.inspected import Inspected
from ammeter.inspection.place import Place


def examine(place: Place) -> Inspected:
    """Examines a checkpoint by its content, whatever its name.

    Raises:
        Unreachable: the storage does not hand it out.
        NotJudged: it cannot be read within the limits, or in its format.
        MemoryError, OSError: as the system says.
    """
    if place.is_folder():
        return distributed.inspect(place)
    if safetensors_file.is_one(place):
        return safetensors_file.inspect(place)
    return torch_file.inspect(place)
