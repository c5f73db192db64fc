"""Turns curves into rows of a heat map, one value per stretch of steps.

Pure: arrays in, arrays out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ammeter.wire.columns import ABSENT, Floats, Ints
from ammeter_server.curves.reader import CurveChunk


def stretches(first: int, last: int, most: int) -> Ints:
    """Returns the beginnings of at most `most` stretches of steps, and the last end.

    One stretch per step if there are fewer steps than `most`.
    """
    count = last + 1 - first
    parts = min(most, count)
    return np.array([first + count * part // parts for part in range(parts + 1)], np.int64)


def filled(pieces: Sequence[CurveChunk], edges: Ints, lowest: bool = False) -> tuple[Floats, Ints]:
    """Returns float32[stretches] and int64[stretches]: the shown values and their steps.

    The first NaN or Inf of a stretch, else its largest value, or its smallest with `lowest`; the first of equal values.
    Without measurement the value is absent and the step -1.
    """
    shown, at = np.full(len(edges) - 1, ABSENT, np.float32), np.full(len(edges) - 1, -1, np.int64)
    best = np.full(len(edges) - 1, -np.inf)
    for piece in pieces:
        bounds = piece.rows.bounds(edges)
        starts = bounds if piece.places is None else np.searchsorted(piece.places, bounds)
        starts = np.minimum(starts, len(piece.values))
        some = np.flatnonzero(starts[:-1] < starts[1:])
        if not len(some):
            continue
        ranks = _ranks(piece.values[: starts[-1]], lowest)
        highest = np.maximum.reduceat(ranks, starts[some])
        begin = int(starts[some[0]])
        equal = begin + np.flatnonzero(ranks[begin:] == highest.repeat(np.diff(starts)[some]))
        first = equal[np.searchsorted(equal, starts[some])]
        better = highest > best[some]
        where, first = some[better], first[better]
        best[where], shown[where] = highest[better], piece.values[first]
        at[where] = piece.rows.steps_at(first if piece.places is None else piece.places[first])
    return shown, at


NOT_FINITE = np.finfo(np.float64).max
"""Ranks above every float32."""


def _ranks(values: Floats, lowest: bool) -> npt.NDArray[np.float64]:
    """Returns ranks; the value with the highest rank is shown."""
    ranks = values.astype(np.float64)
    return np.where(np.isfinite(ranks), -ranks if lowest else ranks, NOT_FINITE)
