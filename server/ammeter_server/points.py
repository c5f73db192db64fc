"""Fewer points of a curve, without losing what a person looks for: extremes, and values that are no numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ammeter.block import Floats, Ints


def choose(values: Floats, points: int) -> Ints:
    """Which of the values to show, ascending: all of them, or at most `points` (16 or more).

    The first and the last stay. Of each stretch its smallest and its largest finite value stay, and of the
    non-finite ones all, or where they are many each stretch's first and last.
    """
    if len(values) <= points:
        return np.arange(len(values), dtype=np.int64)
    finite = np.isfinite(values)
    strange = np.flatnonzero(~finite)
    if len(strange) > points // 2:
        strange = _ends(strange, (points // 2 - 2) // 2)
    plain = np.flatnonzero(finite)
    kept = [np.array([0, len(values) - 1]), strange, _extremes(plain, values[plain], (points - len(strange) - 2) // 2)]
    return np.unique(np.concatenate(kept)).astype(np.int64)


def _extremes(where: npt.NDArray[np.intp], values: Floats, stretches: int) -> npt.NDArray[np.intp]:
    """Of each stretch the positions of its minimum and maximum."""
    if len(where) <= 2 * stretches:
        return where
    edges = np.linspace(0, len(where), stretches + 1).astype(np.intp)
    lengths = np.diff(edges)
    picked = []
    for extreme in (np.minimum, np.maximum):
        best = extreme.reduceat(values, edges[:-1]).repeat(lengths)
        places = np.flatnonzero(values == best)
        picked.append(where[places[np.searchsorted(places, edges[:-1])]])
    return np.concatenate(picked)


def _ends(where: npt.NDArray[np.intp], stretches: int) -> npt.NDArray[np.intp]:
    """Of each stretch the first and the last position."""
    edges = np.linspace(0, len(where), stretches + 1).astype(np.intp)
    return np.concatenate([where[edges[:-1]], where[edges[1:] - 1]])
