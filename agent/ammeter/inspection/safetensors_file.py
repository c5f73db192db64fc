"""Examines a safetensors file: a header in JSON, then the bytes of each tensor, at the offsets of the header.

The format is that of https://github.com/huggingface/safetensors#format. A tensor of a store is read by its offsets, so
that the file is never copied.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import torch

from ammeter.inspection.finite import is_finite
from ammeter.inspection.inspected import SAFETENSORS, Inspected
from ammeter.inspection.place import BLOCK_BYTES, Place
from ammeter.preparation.contents import contents_of_specs

MAX_HEADER_BYTES = 100_000_000
"""Limit of the format's own library, against headers that were made to fill the memory."""

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
"""Floating-point numbers; others are finite."""


def inspect(place: Place) -> Inspected:
    """Examines the file.

    Raises:
        Unreachable: the storage does not hand it out.
    """
    found = Inspected(SAFETENSORS, place.size())
    length = _header_bytes(place)
    try:
        header = json.loads(place.read(8, 8 + length))
        specs = {name: spec for name, spec in header.items() if name != "__metadata__"}
        found.broken = _inconsistency(specs, found.bytes - 8 - length)
    except (ValueError, AttributeError, KeyError, TypeError):
        found.broken = "its header is not that of a safetensors file"
    if found.broken:
        return found
    bad = _not_finite(place, specs, 8 + length)
    for name, spec in specs.items():
        found.add(name, name not in bad)
        found.weights[name] = tuple(spec["shape"])
    found.contents = contents_of_specs(specs)
    return found


def is_one(place: Place) -> bool:
    """Whether a file begins as the format wants it: the length of a header, which is an object in JSON."""
    return 0 < _header_bytes(place) <= MAX_HEADER_BYTES and place.read(8, 9) == b"{"


def _header_bytes(place: Place) -> int:
    start = place.read(0, 8)
    return int(struct.unpack("<Q", start)[0]) if len(start) == 8 else 0


def _inconsistency(specs: dict[str, Any], data_bytes: int) -> str:
    """Why the offsets are not those of a whole file, '' if they are: one tensor follows the other, up to the end."""
    expected = 0
    for name, spec in sorted(specs.items(), key=lambda item: tuple(item[1]["data_offsets"])):
        begin, end = spec["data_offsets"]
        if begin != expected or end < begin:
            return "the offsets in its header leave a gap or overlap"
        dtype = _DTYPES.get(spec["dtype"])
        if dtype is not None and end - begin != math.prod(spec["shape"]) * dtype.itemsize:
            return f"the bytes of {name} do not have its shape"
        expected = end
    if expected != data_bytes:
        return f"its header describes {expected} bytes of tensors, and it has {data_bytes}"
    return ""


def _not_finite(place: Place, specs: dict[str, Any], data: int) -> set[str]:
    """Returns the names of tensors with NaN or Inf.

    Args:
        data: where the bytes of tensors begin.
    """
    parts = [
        (start, min(start + BLOCK_BYTES, data + spec["data_offsets"][1]), name)
        for name, spec in specs.items()
        if spec["dtype"] in _DTYPES
        for start in range(data + spec["data_offsets"][0], data + spec["data_offsets"][1], BLOCK_BYTES)
    ]
    parts.sort()
    contents = place.read_ranges((start, end) for start, end, _ in parts)
    return {
        name
        for content, (_, _, name) in zip(contents, parts, strict=True)
        if not is_finite(torch.frombuffer(bytearray(content), dtype=_DTYPES[specs[name]["dtype"]]))
    }
