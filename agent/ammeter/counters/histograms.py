"""Histograms of columns, as lists of counts: one for each bound, and one for values above the last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ammeter.wire.columns import View

BOUNDS = {
    "grad_norm": tuple(10.0**power for power in range(-8, 9)),
    "step_seconds": (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
}
"""Column -> upper bounds of its histogram. The counters contain the histogram as `<column>_histogram`."""

_BOUNDS = {column: np.array(bounds) for column, bounds in BOUNDS.items()}


def empty(column: str) -> list[int]:
    return [0] * (len(BOUNDS[column]) + 1)


def of(counters: Mapping[str, Any], column: str) -> list[int]:
    """Returns the column's histogram in the counters."""
    counts: list[int] = counters.get(f"{column}_histogram") or empty(column)
    return counts


def filled(counts: Sequence[int], column: str, view: View) -> list[int]:
    """Returns the histogram with the finite values of a view."""
    values = view.scalar(column)
    after = list(counts)
    for place in np.searchsorted(_BOUNDS[column], values[np.isfinite(values)], side="left").tolist():
        after[place] += 1
    return after


def added(left: Sequence[int], right: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(left, right, strict=True)]


def highest(histograms: Sequence[Sequence[int]], column: str) -> Sequence[int]:
    """Merges the histograms of ranks: the largest cumulative count at each bound.

    So no count falls when another rank joins.
    """
    if len(histograms) < 2:
        return histograms[0] if histograms else empty(column)
    below = [max(counts) for counts in zip(*map(accumulate, histograms), strict=True)]
    return [after - before for before, after in pairwise([0, *below])]
