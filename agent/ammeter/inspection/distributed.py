"""Examines a folder of torch.distributed.checkpoint: the index `.metadata`, and files with the parts of all ranks.

Each part is read at its offset and loaded with weights_only=True; the folder of a store is never copied.
"""

from __future__ import annotations

import io
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch

from ammeter.inspection.finite import is_finite, tensors_in, weights_in
from ammeter.inspection.inspected import DISTRIBUTED, Inspected
from ammeter.inspection.metadata import INDEX_FILE, read_index
from ammeter.inspection.place import NotJudged, Place, Unreachable
from ammeter.inspection.torch_file import note_refusal
from ammeter.preparation.contents import contents_of

Part = tuple[str, Any]
"""The name of an entry and where its bytes are: a file, an offset and a length."""


def inspect(place: Place) -> Inspected:
    """Examines the folder.

    Raises:
        Unreachable: the storage does not hand it out.
        NotJudged: its parts have another format, or its index has what torch does not put into it.
    """
    sizes = place.sizes()
    found = Inspected(DISTRIBUTED, sum(sizes.values()))
    if INDEX_FILE not in sizes:
        found.broken = f"it has no {INDEX_FILE}, which is written last, after the files of all ranks"
        return found
    try:
        index = read_index(place.inside(INDEX_FILE).read(0, sizes[INDEX_FILE]))
        parts = [(str(key.fqn), stored) for key, stored in index.storage_data.items()]
        found.broken = _missing_file(parts, sizes) or _missing_part(index, parts)
    except (NotJudged, Unreachable, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - the error of a broken index is the result
        found.broken = f"its {INDEX_FILE} cannot be read ({type(error).__name__}: {str(error)[:200]})"
    if found.broken:
        return found
    if any(getattr(stored, "transform_descriptors", None) for _, stored in parts):
        raise NotJudged("its parts are compressed or in another format")
    values = _read(place, parts, index.state_dict_metadata, found)
    if not found.broken and not found.unread:
        nested = _nested(index, values)
        found.weights, found.contents = dict(weights_in(nested)), contents_of(nested)
    return found


def _missing_file(parts: list[Part], sizes: dict[str, int]) -> str:
    """Says which file is missing or too short, '' if none is."""
    ends: defaultdict[str, int] = defaultdict(int)
    for _, stored in parts:
        ends[stored.relative_path] = max(ends[stored.relative_path], stored.offset + stored.length)
    for name, end in sorted(ends.items()):
        if name not in sizes:
            return f"its file {name} is missing"
        if sizes[name] < end:
            return f"its file {name} has {sizes[name]} bytes, and the index needs {end}"
    return ""


def _missing_part(index: Any, parts: list[Part]) -> str:
    """Says which entry has no bytes, or whose chunks do not cover its shape; '' if none."""
    stored = {name for name, _ in parts}
    for name, entry in index.state_dict_metadata.items():
        if _is_tensor(entry):
            elements = sum(math.prod(chunk.sizes) for chunk in entry.chunks)
            if elements < math.prod(entry.size):
                return f"{name} has {elements} of its {math.prod(entry.size)} elements"
        if name not in stored and not (_is_tensor(entry) and not math.prod(entry.size)):
            return f"{name} is in the index and in no file"
    return ""


def _read(place: Place, parts: list[Part], entries: dict[str, Any], found: Inspected) -> dict[str, Any]:
    """Reads all parts, in the order of their bytes.

    Returns:
        The values that are no tensors.
    """
    values: dict[str, Any] = {}
    bad: set[str] = set()
    for name, content in _contents(place, parts):
        try:
            value = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except Exception as error:  # noqa: BLE001 - as above
            note_refusal(found, error, content[:4], name)
            return values
        if any(not is_finite(tensor) for _, tensor in tensors_in(value)):
            bad.add(name)
        if not _is_tensor(entries.get(name)):
            values[name] = value
    for name, entry in entries.items():
        if _is_tensor(entry):
            found.add(name, name not in bad)
    found.nonfinite += sorted(bad - set(found.nonfinite))
    return values


def _contents(place: Place, parts: list[Part]) -> Iterator[tuple[str, bytes]]:
    """Yields the name and the bytes of each part, file by file."""
    by_file: defaultdict[str, list[Part]] = defaultdict(list)
    for part in parts:
        by_file[part[1].relative_path].append(part)
    for file, inside in sorted(by_file.items()):
        inside.sort(key=lambda part: part[1].offset)
        ranges = ((stored.offset, stored.offset + stored.length) for _, stored in inside)
        names = (name for name, _ in inside)
        yield from zip(names, place.inside(file).read_ranges(ranges), strict=True)


def _nested(index: Any, values: dict[str, Any]) -> dict[str, Any]:
    """The saved object again, with tensors that have a shape and no numbers."""
    root: dict[str, Any] = {}
    for name, value in _entries(index, values):
        path = [str(step) for step in (index.planner_data or {}).get(name) or name.split(".")]
        folder = root
        for step in path[:-1]:
            inner = folder.setdefault(step, {})
            folder = inner if isinstance(inner, dict) else {}
        folder[path[-1]] = value
    return root


def _entries(index: Any, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, entry in index.state_dict_metadata.items():
        if _is_tensor(entry):
            yield name, torch.empty(entry.size, dtype=entry.properties.dtype, device="meta")
        else:
            yield name, values.get(name)


def _is_tensor(entry: Any) -> bool:
    return hasattr(entry, "chunks")
