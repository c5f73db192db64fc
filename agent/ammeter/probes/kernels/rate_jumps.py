"""Detects a learning rate that jumps: often a new phase of the training, in which other code runs."""

from __future__ import annotations

MIN_JUMP = 1.5
"""Factor between the rates of two steps."""

MAX_STEADY_CHANGE = 1.1
MIN_STEADY_STEPS = 8
"""Steps before the jump between which the rate changes by less than this factor. A linear warm-up changes it by more in
its first ten steps, and by less in all later ones."""


class RateJumps:
    """The learning rate of one run, step by step."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._steady_steps = 0

    def jumps(self, rate: float | None) -> bool:
        """Whether the rate of this step is a jump from the last known one. None and 0 are no rates."""
        if not rate or not rate > 0:
            return False
        before, self._rate = self._rate, rate
        if not before:
            return False
        change = max(before / rate, rate / before)
        if change < MAX_STEADY_CHANGE:
            self._steady_steps += 1
            return False
        was_steady, self._steady_steps = self._steady_steps >= MIN_STEADY_STEPS, 0
        return was_steady and change >= MIN_JUMP
