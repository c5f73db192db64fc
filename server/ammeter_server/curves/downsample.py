"""Reduces the points of a curve but keeps extremes and non-finite values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ammeter.wire.columns import Floats, Ints

Places = npt.NDArray[np.intp]


def choose(values: Floats, points: int, times: Ints | None = None) -> Ints:
    """Returns the ascending positions of at most `points` values to show (16 or more).

    All values, if they are no more than that. Keeps the first and the last value. Keeps each stretch's smallest and
    largest finite value, and all non-finite values, or if they are many each stretch's first and last one. Stretches
    have equally many values. With `times`, the time of each value, they have equal duration, so that a dense period is
    shown as coarsely as the rest.
    """
    if len(values) <= points:
        return np.arange(len(values), dtype=np.int64)
    finite = np.isfinite(values)
    strange = np.flatnonzero(~finite)
    if len(strange) > points // 2:
        strange = strange[_ends(_edges(strange, (points // 2 - 2) // 2, times))]
    plain = np.flatnonzero(finite)
    stretches = (points - len(strange) - 2) // 2
    if len(plain) > 2 * stretches:
        plain = plain[_extremes(values[plain], _edges(plain, stretches, times))]
    ends = np.array([0, len(values) - 1])
    return np.unique(np.concatenate([ends, strange, plain])).astype(np.int64)


def _edges(where: Places, stretches: int, times: Ints | None) -> Places:
    """Returns the beginnings of non-empty stretches of these positions, and the end of the last."""
    if times is None:
        return np.linspace(0, len(where), stretches + 1).astype(np.intp)
    rising = np.maximum.accumulate(times[where])  # a clock may have been set back
    equal = rising[0] + (rising[-1] - rising[0]) / stretches * np.arange(1, stretches)
    return np.unique(np.concatenate([[0], np.searchsorted(rising, equal), [len(where)]]))


def _extremes(values: Floats, edges: Places) -> Places:
    """Returns the positions of each stretch's minimum and maximum."""
    lengths = np.diff(edges)
    picked = []
    for extreme in (np.minimum, np.maximum):
        best = extreme.reduceat(values, edges[:-1]).repeat(lengths)
        places = np.flatnonzero(values == best)
        picked.append(places[np.searchsorted(places, edges[:-1])])
    return np.concatenate(picked)


def _ends(edges: Places) -> Places:
    """Returns the first and the last position of each stretch."""
    return np.concatenate([edges[:-1], edges[1:] - 1])
