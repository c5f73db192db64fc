"""Reduces the points of a curve but keeps extremes and non-finite values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ammeter.wire.columns import Floats, Ints

Places = npt.NDArray[np.intp]


def choose(values: Floats, points: int, times: Ints | None = None) -> Ints:
    """Returns the ascending positions of the values to show.

    They are all positions if there are at most `points` values. Otherwise the values are divided into intervals. The
    function keeps the first and the last value, each interval's smallest and largest finite value, and all non-finite
    values, or if they are many each interval's first and last one.

    Args:
        values: The values of a curve.
        points: Maximum number of positions, 16 or more.
        times: The time of each value. With it intervals have equal duration, so that a dense period is shown as
            coarsely as the rest; without it they have equally many values.
    """
    if len(values) <= points:
        return np.arange(len(values), dtype=np.int64)
    finite = np.isfinite(values)
    nonfinite = np.flatnonzero(~finite)
    if len(nonfinite) > points // 2:
        nonfinite = nonfinite[_ends(_edges(nonfinite, (points // 2 - 2) // 2, times))]
    finite_places = np.flatnonzero(finite)
    intervals = (points - len(nonfinite) - 2) // 2
    if len(finite_places) > 2 * intervals:
        finite_places = finite_places[_extremes(values[finite_places], _edges(finite_places, intervals, times))]
    ends = np.array([0, len(values) - 1])
    return np.unique(np.concatenate([ends, nonfinite, finite_places])).astype(np.int64)


def _edges(where: Places, intervals: int, times: Ints | None) -> Places:
    """Returns the beginnings of non-empty intervals of these positions, and the end of the last."""
    if times is None:
        return np.linspace(0, len(where), intervals + 1).astype(np.intp)
    rising = np.maximum.accumulate(times[where])  # a clock may have been set back
    equal = rising[0] + (rising[-1] - rising[0]) / intervals * np.arange(1, intervals)
    return np.unique(np.concatenate([[0], np.searchsorted(rising, equal), [len(where)]]))


def _extremes(values: Floats, edges: Places) -> Places:
    """Returns the positions of each interval's minimum and maximum."""
    lengths = np.diff(edges)
    picked = []
    for extreme in (np.minimum, np.maximum):
        best = extreme.reduceat(values, edges[:-1]).repeat(lengths)
        places = np.flatnonzero(values == best)
        picked.append(places[np.searchsorted(places, edges[:-1])])
    return np.concatenate(picked)


def _ends(edges: Places) -> Places:
    """Returns the first and the last position of each interval."""
    return np.concatenate([edges[:-1], edges[1:] - 1])
