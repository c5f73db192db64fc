"""Storage format of the steps and times of a segment: differences from a straight line."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ammeter.wire import zstd
from ammeter.wire.columns import Ints
from ammeter_server.db.column_codec import ZSTD_LEVEL

_PACKED, _PLAIN = 1, 2
_DIFFERENCES = {size: np.dtype(f"<i{size}") for size in (1, 2, 4, 8)}

_HEADER = struct.Struct("<qqBB")
"""Header of steps or times: start and slope of the line, bytes per difference, whether the differences are
compressed."""


def pack_integers(numbers: Ints) -> bytes:
    """Packs steps or times exactly.

    Stores their differences from a straight line, with the fewest bytes that all of them fit in.
    """
    base, slope = int(numbers[0]), (int(numbers[-1]) - int(numbers[0])) // max(1, len(numbers) - 1)
    differences = numbers - _line(base, slope, np.arange(len(numbers)))
    if not differences.any():
        return _HEADER.pack(base, slope, 0, _PLAIN)
    size = next(size for size in (1, 2, 4, 8) if _fits(differences, size))
    plain = differences.astype(f"<i{size}").tobytes()
    packed = zstd.compress(plain, ZSTD_LEVEL)
    if len(packed) < len(plain) // 2:  # plain differences can be read singly, without the others
        return _HEADER.pack(base, slope, size, _PACKED) + packed
    return _HEADER.pack(base, slope, size, _PLAIN) + plain


def unpack_integers(data: bytes, rows: int, places: Ints | None = None) -> Ints:
    """Unpacks int64 steps or times of all rows, or of the given rows."""
    base, slope, size, kind = _HEADER.unpack_from(data)
    wanted = np.arange(rows) if places is None else places
    line = _line(base, slope, wanted)
    if not size:
        return line
    numbers: Ints = line + _differences(data, rows, size, kind)[wanted]
    return numbers


def unpack_across(parts: Sequence[bytes], rows: Sequence[int], numbers: Ints, places: Ints) -> Ints:
    """Unpacks single steps or times of several segments.

    Args:
        parts: The packed numbers of each segment.
        rows: The number of rows of each segment.
        numbers: The segment of each wanted number, ascending.
        places: The row of each wanted number in its segment.
    """
    headers = [_HEADER.unpack_from(part) for part in parts]
    bases, slopes = (np.array(column, np.int64) for column in list(zip(*headers, strict=True))[:2])
    wanted: Ints = bases[numbers] + slopes[numbers] * places
    edges = np.searchsorted(numbers, np.arange(len(parts) + 1)).tolist()
    for part, count, (*_, size, kind), begin, end in zip(parts, rows, headers, edges[:-1], edges[1:], strict=True):
        if size and end > begin:
            wanted[begin:end] += _differences(part, count, size, kind)[places[begin:end]]
    return wanted


def _differences(data: bytes, rows: int, size: int, kind: int) -> npt.NDArray[np.signedinteger[Any]]:
    if kind == _PACKED:
        return np.frombuffer(zstd.decompress(memoryview(data)[_HEADER.size :], rows * size), _DIFFERENCES[size])
    return np.frombuffer(data, _DIFFERENCES[size], offset=_HEADER.size)


def _line(base: int, slope: int, places: Ints) -> Ints:
    line: Ints = places * np.int64(slope)
    line += base
    return line


def _fits(numbers: Ints, size: int) -> bool:
    limits = np.iinfo(f"<i{size}")
    return bool(limits.min <= numbers.min() and numbers.max() <= limits.max)
