"""Detects jumps of the loss, which is known in every step, to read gradient norms at once."""

from __future__ import annotations

WARM_UP_LOSSES = 8
"""Losses that set the level; a new run is read densely meanwhile."""

SMOOTHING = 0.1
"""Weight of the newest loss in the level and in its mean deviation."""

MIN_DEVIATIONS = 8.0
MIN_CHANGE = 0.2
"""A jump exceeds so many mean deviations, and this share of the level. With normally distributed losses, 8 mean
deviations are 6.4 standard deviations; a false alarm costs two readings."""


MIN_FALL = 1e4
"""Factor by which learning never reduces the loss from one step to the next."""


class LossLevel:
    """The level of a run's losses and their mean deviation from it.

    A jump changes both by no more than the largest loss that is none, so a single one leaves the level as it was, and a
    lasting one becomes the level after some tens of losses. Losses of several kinds widen the deviation.
    """

    __slots__ = ("_count", "_deviation", "_level")

    def __init__(self) -> None:
        self._count = 0
        self._level = self._deviation = 0.0

    def falls(self, loss: float) -> bool:
        """Whether a loss is so far below the level that its weight must have changed. A loss of zero has no weight.

        That is a jump even if the losses scatter by more than their level, so that no fall exceeds their deviation.
        """
        return 0 < abs(loss) * MIN_FALL < self._level

    def jumps(self, loss: float) -> bool:
        """Adds a loss; returns whether it is far from the level. A non-finite loss is ignored: others report it."""
        difference = loss - self._level
        if difference - difference != 0:
            return False
        distance = abs(difference)
        if self._count < WARM_UP_LOSSES:
            self._count += 1
            self._level += difference / self._count
            if self._count > 1:
                self._deviation += (distance - self._deviation) / (self._count - 1)
            return False
        limit = max(MIN_DEVIATIONS * self._deviation, MIN_CHANGE * abs(self._level))
        counted = min(distance, limit) if limit else distance
        self._level += SMOOTHING * (counted if difference > 0 else -counted)
        self._deviation += SMOOTHING * (counted - self._deviation)
        return distance > limit or self.falls(loss)
