"""Selects the steps in which all ranks of a run make the same reading, whatever their budgets allow.

Each rank has a budget of its own, so its other readings are of other steps than those of the other ranks. Readings come
in pairs of consecutive steps: 0, 1, 2, 3, 4, 6, 8, 12 and so on, with two in each doubling of the step, at multiples of
20 up to 100, and at multiples of 1000. Programs that average their weights now and then do so at such steps, too.
"""

from __future__ import annotations

import sys

NEVER = sys.maxsize

EARLY_INTERVAL_STEPS, EARLY_STEPS = 20, 100
INTERVAL_STEPS = 1000
"""Regular intervals, until EARLY_STEPS and for ever. A pair takes about 0.5 ms, little in 1000 steps of 1 ms."""


class SharedSteps:
    """The shared steps of one session.

    Attributes:
        next: the shared step that is awaited; NEVER in a run without other ranks.
    """

    def __init__(self) -> None:
        self.next = NEVER

    def begin(self) -> None:
        """Starts with the first step, in a run with other ranks."""
        self.next = 0

    def is_due(self, step: int) -> bool:
        """Whether this is a shared step; steps are asked for in ascending order."""
        if step > self.next:
            self.next = next_shared(step)
        return step == self.next


def next_shared(step: int) -> int:
    """Returns the first shared step from this one on."""
    if _begins_pair(step) or _begins_pair(step - 1):
        return step
    interval = EARLY_INTERVAL_STEPS if step < EARLY_STEPS else INTERVAL_STEPS
    doubling = 1 << step.bit_length()
    return min(doubling * 3 // 4 if step < doubling * 3 // 4 else doubling, (step // interval + 1) * interval)


def _begins_pair(step: int) -> bool:
    power = step // 3 if step % 3 == 0 else step
    interval = EARLY_INTERVAL_STEPS if step <= EARLY_STEPS else INTERVAL_STEPS
    return step >= 0 and (power & (power - 1) == 0 or step % interval == 0)
