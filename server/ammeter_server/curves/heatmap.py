"""Turns curves into rows of a heat map, one value per range of steps.

Pure: arrays in, arrays out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ammeter.wire.columns import ABSENT, Floats, Ints
from ammeter_server.curves.curve_chunk import CurveChunk


def ranges_of(first: int, last: int, most: int) -> Ints:
    """Returns the beginnings of at most `most` ranges of steps, and the last end.

    Each step has its own range if there are fewer steps than `most`.
    """
    count = last + 1 - first
    parts = min(most, count)
    return np.array([first + count * part // parts for part in range(parts + 1)], np.int64)


def filled(chunks: Sequence[CurveChunk], edges: Ints, lowest: bool = False) -> tuple[Floats, Ints]:
    """Returns float32[ranges] and int64[ranges]: the shown values and their steps.

    A range shows its first NaN or Inf, else its largest value, or its smallest with `lowest`. The first of equal values
    is shown. Without measurement the value is absent and the step is -1.
    """
    shown, at = np.full(len(edges) - 1, ABSENT, np.float32), np.full(len(edges) - 1, -1, np.int64)
    best = np.full(len(edges) - 1, -np.inf)
    for chunk in chunks:
        bounds = chunk.rows.bounds(edges)
        starts = bounds if chunk.places is None else np.searchsorted(chunk.places, bounds)
        starts = np.minimum(starts, len(chunk.values))
        filled_ranges = np.flatnonzero(starts[:-1] < starts[1:])
        if not len(filled_ranges):
            continue
        ranks = _ranks(chunk.values[: starts[-1]], lowest)
        highest = np.maximum.reduceat(ranks, starts[filled_ranges])
        begin = int(starts[filled_ranges[0]])
        equal = begin + np.flatnonzero(ranks[begin:] == highest.repeat(np.diff(starts)[filled_ranges]))
        first = equal[np.searchsorted(equal, starts[filled_ranges])]
        better = highest > best[filled_ranges]
        where, first = filled_ranges[better], first[better]
        best[where], shown[where] = highest[better], chunk.values[first]
        at[where] = chunk.rows.steps_at(first if chunk.places is None else chunk.places[first])
    return shown, at


NOT_FINITE = np.finfo(np.float64).max
"""Ranks above every float32."""


def _ranks(values: Floats, lowest: bool) -> npt.NDArray[np.float64]:
    """Returns ranks; the value with the highest rank is shown."""
    ranks = values.astype(np.float64)
    return np.where(np.isfinite(ranks), -ranks if lowest else ranks, NOT_FINITE)
