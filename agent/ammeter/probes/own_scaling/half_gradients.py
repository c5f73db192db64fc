"""Finds gradients that come from float16 without a loss scale, although the program changes them before step().

A clip of the program's own moves the gradients off the grid of float16 before they are read in full. The samples after
backward() are on it, and what an optimizer receives is not smaller by a loss scale.
"""

from __future__ import annotations

from ammeter.probes.own_scaling.samples import TOLERANCE
from ammeter.probes.own_scaling.steps import Use
from ammeter.recording.loss_shares import MIN_OWN_SCALE

MIN_STEPS = 8
"""Steps that must agree. Of the twelve that are sampled at the beginning, a few may have no gradients."""

MAX_ELEMENT = 2.0**-3
GRID = 2.0**-24
"""Hardly any float32 number below MAX_ELEMENT is by chance a multiple of GRID, the smallest number of float16."""

MIN_ELEMENTS, TAKEN_ELEMENTS = 4, 8
"""Nonzero elements that must be on the grid, of so many at the begin or the end of a sample: of one tensor."""


class HalfGradients:
    """The sampled steps of one run without a proven loss scale."""

    def __init__(self) -> None:
        self._steps = 0
        self._is_changed = self._is_over = False

    def found(self, use: Use) -> bool:
        """Whether this step shows, as the last of several, that changed gradients come from float16 unscaled."""
        if self._is_over:
            return False
        values = use.produced.values
        is_half = _is_on_grid(values[:TAKEN_ELEMENTS]) or _is_on_grid(values[-TAKEN_ELEMENTS:])
        if not is_half or not use.ratio > 1 / MIN_OWN_SCALE:
            self._is_over = True
            return False
        self._steps += 1
        self._is_changed = self._is_changed or abs(use.ratio - 1) > TOLERANCE
        self._is_over = self._is_changed and self._steps >= MIN_STEPS
        return self._is_over


def _is_on_grid(values: list[float]) -> bool:
    small = [value for value in values if 0 < abs(value) < MAX_ELEMENT]
    return len(small) >= MIN_ELEMENTS and all(value % GRID == 0 for value in small)
