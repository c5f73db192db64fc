"""Examines a file of torch.save. It is loaded with weights_only=True, so that no code in it runs."""

from __future__ import annotations

import errno
import pickle
from typing import Any

import torch

from ammeter.inspection.finite import is_finite, tensors_in, weights_in
from ammeter.inspection.inspected import TORCH, Inspected
from ammeter.inspection.place import NotJudged, Place
from ammeter.preparation.contents import contents_of

UNMAPPED_BYTES = 2**30
"""Largest file of the old format that is read.

It cannot be mapped and must fit into memory.
"""


_DAMAGED = (errno.EINVAL, None)
"""Numbers of the OSErrors that torch raises for an archive that was cut; others are the system's."""


_ARCHIVE = b"PK\x03\x04"
"""The first bytes of torch's format, a zip archive, whose list of parts torch reads before it loads any."""


def inspect(place: Place) -> Inspected:
    """Examines the file.

    Raises:
        Unreachable: the storage does not hand it out.
        NotJudged: the limits do not allow to read it.
    """
    found = Inspected(TORCH, place.size())
    with place.on_this_machine() as path:
        try:
            loaded = _load(path, found.bytes)
        except (MemoryError, NotJudged):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno not in _DAMAGED:
                raise
            with open(path, "rb") as file:
                note_refusal(found, error, file.read(4))
            return found
        for name, tensor in tensors_in(loaded):
            found.add(name, is_finite(tensor))
        found.weights = dict(weights_in(loaded))
        found.contents = contents_of(loaded)
    return found


def note_refusal(found: Inspected, error: Exception, start: bytes, name: str = "") -> None:
    """Notes why torch did not load something.

    An archive whose parts are all there can have objects that weights_only=True refuses: nothing is wrong with it.

    Args:
        start: its first four bytes.
        name: the name of the part, if it is not the whole.
    """
    message = str(error).splitlines()[0][:200] if str(error) else ""
    why = f"weights_only=True does not load it ({type(error).__name__}: {message})" if start else "the file is empty"
    reason = f"{name and f'{name}: '}{why}"
    if isinstance(error, pickle.UnpicklingError) and start == _ARCHIVE:
        found.unread = reason
    else:
        found.broken = reason


def _load(path: str, size: int) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:
        if "mmap can only be used" not in str(error):
            raise
    if size > UNMAPPED_BYTES:
        raise NotJudged("it has torch's old format and is too large to be read into memory")
    return torch.load(path, map_location="cpu", weights_only=True)
