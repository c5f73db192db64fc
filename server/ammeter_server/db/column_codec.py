"""Storage format of one column of a segment, with its coarse level.

Pure: arrays in, bytes out, and back. The format stores the measured values alone, bit-exact: a mask of their rows, then
their four bytes as four planes. Each plane is a constant, compressed, or plain, so that the noise of a mantissa is
copied and not decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ammeter.wire import zstd
from ammeter.wire.columns import ABSENT, Floats, Ints, measured

ZSTD_LEVEL = 1
"""Level of zstd. Planes are noise or nearly constant: level 3 is a little slower and its output a little larger."""

COLUMNS_PER_PART = 8
"""Columns in one database row. With one column of 2,000 steps per row, a third of each 4 KB page would stay empty."""

MAX_SEGMENT_ROWS = 2**15
"""Rows of a segment: a position in it has two bytes."""

BUCKET_VALUES = 512
"""Measured values per entry of the coarse level. An entry has 20 bytes, which makes 0.04 bytes per value."""

MAX_COMPRESSED_SHARE = 0.97
"""A plane is compressed if that saves at least 3 %: below that, unpacking costs more than the space is worth."""

_ALL_ROWS, _MASKED_ROWS = 0, 1
_CONSTANT, _PACKED, _PLAIN = 0, 1, 2
_ENTRY = struct.Struct("<BIIIIIff")
"""Column number; bytes of its coarse level, of its values in the head, of its values in data; numbers of measured and
of non-finite values; lowest and highest finite value."""


_PLACES, _KINDS = ("odd_at", "<u2", 2), ("odd", "u1", 2)
COARSE = np.dtype(
    [("low", "<f4"), ("high", "<f4"), ("low_at", "<u2"), ("high_at", "<u2"), _PLACES, _KINDS, ("odds", "<u2")]
)
"""A bucket: its finite extremes with their positions, its first and last non-finite value, and the number of those.

Positions are rows of the segment. A bucket without finite values has low > high.
"""

NONFINITE_VALUES = np.array([np.nan, np.inf, -np.inf], np.float32)

Coarse = npt.NDArray[np.void]


class Packed(NamedTuple):
    """Neighbouring columns of a segment, as one database row stores them.

    Attributes:
        head: The entry and the coarse level of each column, and the values of short columns.
        data: The values of the other columns.
    """

    head: bytes
    data: bytes


class ColumnHeader(NamedTuple):
    """The head's entry for one column.

    Attributes:
        measured: Number of measured values.
        nonfinite: Number of those that are NaN or Inf.
        low, high: Finite extremes; low > high if no value is finite.
        coarse: The coarse level; empty if the column has at most BUCKET_VALUES values.
        few: The packed values of such a short column; else empty.
        data: Position of the packed values in the row's data.
    """

    measured: int
    nonfinite: int
    low: float
    high: float
    coarse: bytes
    few: bytes
    data: slice


def pack(values: Floats) -> Iterator[tuple[int, Packed]]:
    """Packs float32[columns, rows] as (part, row), COLUMNS_PER_PART columns in each.

    A part without measured values has no row.
    """
    values = np.ascontiguousarray(values, "<f4")
    mask = measured(values)
    for begin in range(0, len(values), COLUMNS_PER_PART):
        packed = [
            _column(which, values[begin + which], mask[begin + which])
            for which in range(min(COLUMNS_PER_PART, len(values) - begin))
            if mask[begin + which].any()
        ]
        if packed:
            entries, coarse, few, data = zip(*packed, strict=True)
            extra = b"".join(one + other for one, other in zip(coarse, few, strict=True))
            yield begin // COLUMNS_PER_PART, Packed(bytes([len(packed)]) + b"".join(entries) + extra, b"".join(data))


def read_head(head: bytes, wanted: Collection[int]) -> dict[int, ColumnHeader]:
    """Returns column number -> header, for the wanted columns that were measured.

    Numbers count within the part.
    """
    headers = {}
    at, begin = 1 + head[0] * _ENTRY.size, 0
    for which, coarse, few, size, count, odd, low, high in _ENTRY.iter_unpack(head[1:at]):
        middle = at + coarse
        if which in wanted:
            end = middle + few
            data = slice(begin, begin + size)
            headers[which] = ColumnHeader(count, odd, low, high, head[at:middle], head[middle:end], data)
            if len(headers) == len(wanted):
                break
        at, begin = middle + few, begin + size
    return headers


def unpack(data: bytes, rows: int) -> Floats:
    """Unpacks one column as float32[rows], absent where nothing was measured."""
    if data[0] == _ALL_ROWS:
        return _joined(memoryview(data)[1:], rows)
    values = np.full(rows, ABSENT, np.float32)
    size = int.from_bytes(data[1:3], "little")
    bits = zstd.decompress(data[3 : 3 + size], (rows + 7) // 8)
    mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=rows).view(np.bool_)
    values[mask] = _joined(memoryview(data)[3 + size :], int(mask.sum()))
    return values


def coarse(data: bytes) -> Coarse:
    """Returns the buckets of one coarse level, or of several concatenated levels."""
    return np.frombuffer(data, COARSE) if data else np.zeros(0, COARSE)


def summarize(values: Floats, places: Ints) -> Coarse:
    """Computes the coarse level of measured values at the given rows."""
    starts = np.arange(0, len(values), BUCKET_VALUES)
    finite = np.isfinite(values)
    level = np.zeros(len(starts), COARSE)
    for name, at, extreme, nothing in (
        ("low", "low_at", np.minimum, np.inf),
        ("high", "high_at", np.maximum, -np.inf),
    ):
        compared = np.where(finite, values, np.float32(nothing))
        best = extreme.reduceat(compared, starts)
        level[name], level[at] = best, places[_first(compared == best.repeat(BUCKET_VALUES)[: len(values)], starts)]
    odds = np.add.reduceat(~finite, starts, dtype=np.int64)
    level["odds"] = odds
    having = np.flatnonzero(odds)
    if len(having):
        nonfinite = np.flatnonzero(~finite)
        ends = (
            np.searchsorted(nonfinite, starts[having]),
            np.searchsorted(nonfinite, starts[having] + BUCKET_VALUES) - 1,
        )
        for side, end in enumerate(ends):
            level["odd_at"][having, side] = places[nonfinite[end]]
            level["odd"][having, side] = _kind(values[nonfinite[end]])
    return level


def candidates(level: Coarse) -> tuple[Ints, npt.NDArray[np.int64], Floats]:
    """Returns (bucket, row, value) arrays of all values in a coarse level.

    They are unordered, and some values occur twice.
    """
    finite = np.flatnonzero(level["low"] <= level["high"])
    nonfinite = np.flatnonzero(level["odds"])
    buckets = np.concatenate([finite, finite, nonfinite, nonfinite])
    places = [level["low_at"][finite], level["high_at"][finite], *(level["odd_at"][nonfinite, side] for side in (0, 1))]
    values = [
        level["low"][finite],
        level["high"][finite],
        *(NONFINITE_VALUES[level["odd"][nonfinite, side]] for side in (0, 1)),
    ]
    return buckets, np.concatenate(places).astype(np.int64), np.concatenate(values)


def _column(which: int, column: Floats, mask: npt.NDArray[np.bool_]) -> tuple[bytes, bytes, bytes, bytes]:
    """Returns (entry, coarse level, values for the head, values for data) of a column.

    One of the last two is empty: the values of a short column go to the head.
    """
    complete = bool(mask.all())
    places = np.flatnonzero(mask)
    values = column if complete else column[places]
    finite = values[np.isfinite(values)]
    data = (b"\x00" if complete else _mask(mask)) + b"".join(_planes(values))
    many = len(values) > BUCKET_VALUES
    coarse = summarize(values, places).tobytes() if many else b""
    low, high = (finite.min(), finite.max()) if len(finite) else (np.inf, -np.inf)
    sizes = (0, len(data)) if many else (len(data), 0)
    entry = _ENTRY.pack(which, len(coarse), *sizes, len(values), len(values) - len(finite), low, high)
    return entry, coarse, b"" if many else data, data if many else b""


def _mask(mask: npt.NDArray[np.bool_]) -> bytes:
    bits = zstd.compress(np.packbits(mask).tobytes(), ZSTD_LEVEL, has_size=False)
    return bytes([_MASKED_ROWS]) + len(bits).to_bytes(2, "little") + bits


def _planes(values: Floats) -> Iterator[bytes]:
    for plane in np.ascontiguousarray(values.view(np.uint8).reshape(-1, 4).T):
        if (plane == plane[0]).all():
            yield bytes([_CONSTANT, int(plane[0])])
            continue
        plain = plane.tobytes()
        packed = zstd.compress(plain, ZSTD_LEVEL, has_size=False)
        if len(packed) < MAX_COMPRESSED_SHARE * len(plain):
            yield bytes([_PACKED]) + len(packed).to_bytes(2, "little") + packed
        else:
            yield bytes([_PLAIN]) + plain


def _joined(planes: memoryview, count: int) -> Floats:
    """Joins four planes to float32[count]."""
    bytes_of = np.empty((count, 4), np.uint8)
    at = 0
    for plane in range(4):
        kind = planes[at]
        if kind == _CONSTANT:
            bytes_of[:, plane] = planes[at + 1]
            at += 2
        elif kind == _PACKED:
            begin, size = at + 3, int.from_bytes(planes[at + 1 : at + 3], "little")
            bytes_of[:, plane] = np.frombuffer(zstd.decompress(planes[begin : begin + size], count), np.uint8)
            at = begin + size
        else:
            bytes_of[:, plane] = np.frombuffer(planes[at + 1 : at + 1 + count], np.uint8)
            at += 1 + count
    return bytes_of.view("<f4").reshape(-1)


def _first(true: npt.NDArray[np.bool_], starts: Ints) -> Ints:
    """Returns the first true position of each bucket; every bucket must have one."""
    where = np.flatnonzero(true)
    return where[np.searchsorted(where, starts)]


def _kind(values: Floats) -> npt.NDArray[np.uint8]:
    """Returns the index in NONFINITE_VALUES of each non-finite value."""
    return np.where(np.isnan(values), 0, np.where(values > 0, 1, 2)).astype(np.uint8)
