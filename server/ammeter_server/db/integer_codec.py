"""Storage format of the steps and times of a segment: differences from a straight line."""

from __future__ import annotations

import struct

import numpy as np
import zstandard

from ammeter.wire.columns import Ints
from ammeter_server.db.compression import ZSTD_LEVEL, decompress

_PACKED, _PLAIN = 1, 2

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
    packed = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(plain)
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
    plain = memoryview(data)[_HEADER.size :]
    differences = np.frombuffer(decompress(plain, rows * size) if kind == _PACKED else plain, f"<i{size}")
    numbers: Ints = line + differences[wanted]
    return numbers


def _line(base: int, slope: int, places: Ints) -> Ints:
    line: Ints = places * np.int64(slope)
    line += base
    return line


def _fits(numbers: Ints, size: int) -> bool:
    limits = np.iinfo(f"<i{size}")
    return bool(limits.min <= numbers.min() and numbers.max() <= limits.max)
