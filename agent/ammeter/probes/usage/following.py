"""Which steps are followed call by call: the first ones all, later some, so that watching stays cheap."""

from __future__ import annotations

ALL = 256
"""Steps that are all followed: an order of calls is mostly wrong from the start, or from the first skip on."""

AFTER_A_SKIP = 8
"""Steps that are followed after one that was skipped."""


class Following:
    """Steps are followed in pairs, for what one leaves in the gradients shows in the next one.

    now: whether the present step is followed. soon: whether it or the next one is.
    """

    def __init__(self) -> None:
        self.now = True
        self.soon = True
        self._step = 0
        self._until = 0

    def at(self, step: int) -> bool:
        if step != self._step:
            self._step = step
            self.now = step < self._until or _chosen(step)
            self.soon = self.now or _chosen(step + 1)
        return self.now

    def closely(self, step: int) -> None:
        """This step was skipped."""
        self._until = step + 1 + AFTER_A_SKIP
        self.soon = True


def _chosen(step: int) -> bool:
    """One pair in four after the first steps, in no rhythm that a program could have, too."""
    return step < ALL or (step >> 1) * 0x9E3779B1 >> 16 & 3 == 0
