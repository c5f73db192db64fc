"""Storage format of the summary of one stat in a segment: the extremes of all tensors in buckets of rows.

Pure: arrays in, bytes out, and back. With it a map of all tensors over many steps is drawn without their values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ammeter.wire import zstd
from ammeter.wire.columns import Floats, Ints, View, measured
from ammeter_server.db.column_codec import ZSTD_LEVEL
from ammeter_server.db.step_tables import SUMMARY_PART

MIN_TENSORS = 8
"""Tensors below which a summary saves nothing: their columns are read as quickly."""

BUCKET_ROWS = 512
"""Rows of a bucket at most; 15 bytes before compression."""

MIN_VALUES = 32
"""Values per tensor and bucket below which a segment has one bucket: the summary would be as large as the values."""

NONFINITE_VALUES = np.array([0, np.nan, np.inf, -np.inf], np.float32)
"""A non-finite value by its kind; kind 0 is none."""

_FIELDS = (("low", "<f4"), ("high", "<f4"), ("low_at", "<u2"), ("high_at", "<u2"), ("odd_at", "<u2"), ("odd", "u1"))
_BYTES = sum(np.dtype(kind).itemsize for _, kind in _FIELDS)


class Summary(NamedTuple):
    """Arrays of shape [tensors, buckets].

    Attributes:
        low, high: Finite extremes; low > high if no value is finite.
        low_at, high_at: The first row of the segment with each of them.
        odd_at, odd: Row and kind of the first non-finite value; kind 0 if all are finite.
    """

    low: Floats
    high: Floats
    low_at: npt.NDArray[np.uint16]
    high_at: npt.NDArray[np.uint16]
    odd_at: npt.NDArray[np.uint16]
    odd: npt.NDArray[np.uint8]


def summaries_of(view: View) -> Iterator[tuple[int, bytes]]:
    """Yields (part, packed summary) of each stat that was measured in a segment, if there are many tensors."""
    for number, stat in enumerate(view.schema.stats if len(view.schema.tensors) >= MIN_TENSORS else ()):
        summary = summarize_stat(view.values[view.schema.span(stat)])
        if summary is not None:
            yield SUMMARY_PART + number, pack_summary(summary)


def bucket_rows(rows: int, buckets: int) -> Ints:
    """Returns the first row of every bucket of a segment, then the number of its rows."""
    return np.arange(buckets + 1, dtype=np.int64) * rows // buckets


def summarize_stat(values: Floats) -> Summary | None:
    """Summarizes float32[tensors, rows]. None if nothing was measured."""
    tensors, rows = values.shape
    mask = measured(values)
    places = np.flatnonzero(mask.any(axis=0))
    if not len(places):
        return None
    values, mask = values[:, places], mask[:, places]
    buckets = -(-rows // BUCKET_ROWS)
    buckets = buckets if len(places) >= MIN_VALUES * buckets else 1
    bounds = np.searchsorted(places, bucket_rows(rows, buckets))
    filled = np.flatnonzero(np.diff(bounds))
    summary = Summary(*(np.zeros((tensors, buckets), kind) for _, kind in _FIELDS))
    summary.low[:], summary.high[:] = np.inf, -np.inf
    finite = np.isfinite(values)
    starts, counts = bounds[filled], np.diff(bounds)[filled]
    for best, at, extreme, nothing in (
        (summary.low, summary.low_at, np.minimum, np.inf),
        (summary.high, summary.high_at, np.maximum, -np.inf),
    ):
        compared = np.where(finite, values, np.float32(nothing))
        best[:, filled] = extreme.reduceat(compared, starts, axis=1)
        at[:, filled] = _first(compared == best[:, filled].repeat(counts, axis=1), places, starts)
    odd = mask & ~finite
    if odd.any():
        having = np.logical_or.reduceat(odd, starts, axis=1)
        first = _first(odd, places, starts)
        rows_at, found = np.nonzero(having)
        kinds = values[rows_at, np.searchsorted(places, first[rows_at, found])]
        summary.odd_at[rows_at, filled[found]] = first[rows_at, found]
        summary.odd[rows_at, filled[found]] = np.where(np.isnan(kinds), 1, np.where(kinds > 0, 2, 3))
    return summary


def pack_summary(summary: Summary) -> bytes:
    plain = b"".join(np.asarray(array, kind).tobytes() for array, (_, kind) in zip(summary, _FIELDS, strict=True))
    return bytes([summary.odd.shape[1]]) + zstd.compress(plain, ZSTD_LEVEL, has_size=False)


def buckets_of(packed: bytes) -> int:
    """Returns the number of buckets of a packed summary."""
    return packed[0]


def unpack_summary(packed: bytes, tensors: int) -> Summary:
    """Unpacks the summary of a stat of so many tensors."""
    buckets = packed[0]
    plain, at, arrays = zstd.decompress(memoryview(packed)[1:], tensors * buckets * _BYTES), 0, []
    for _, kind in _FIELDS:
        array = np.frombuffer(plain, kind, tensors * buckets, at)
        at += array.nbytes
        arrays.append(array.reshape(tensors, buckets))
    return Summary(*arrays)


def _first(true: npt.NDArray[np.bool_], places: Ints, starts: Ints) -> Ints:
    """Returns the row of the first true value of each bucket; any large number without one."""
    rows = np.where(true, places, 2**15).astype(np.int64)
    first: Ints = np.minimum.reduceat(rows, starts, axis=1)
    return first
