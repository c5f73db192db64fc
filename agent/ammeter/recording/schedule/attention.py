"""Selects the followed steps of a run within the budget."""

from __future__ import annotations

FIRST_STRETCH_STEPS = 64
"""A new run is followed this long: most mistakes are there from the beginning."""

STRETCH_STEPS = 8
"""Length of each later stretch of followed steps."""

MAX_INTERVAL_STEPS = 1024
"""At least one stretch occurs in this many steps, and one until a run is twice as long as at the last stretch: the
measured cost of the first steps is no reason to follow none of a short run, in which a new phase may begin."""

MIN_EXTRA_INTERVAL_STEPS = MAX_INTERVAL_STEPS // 8
"""Minimum distance between stretches that bad or odd steps start."""


class Attention:
    """Selects the followed steps, in which the order of the program's calls is checked.

    Following adds a small cost to each call. If that is too much for this program's short steps, it is done in
    stretches: a mistake in the order of calls recurs in every step. From time to time a bad or odd step starts a
    stretch by itself.

    Attributes:
        share: the share of step time for all work done in every step.
    """

    def __init__(self, share: float) -> None:
        self.follows = True
        self.steps = 0
        self.length = FIRST_STRETCH_STEPS
        self.share = share
        self._followed_seconds = self._unfollowed_seconds = 0.0
        """Seconds that a followed step and any other one spent in Ammeter outside readings."""
        self._earlier_steps = 0
        self._last_extra_step = -MIN_EXTRA_INTERVAL_STEPS

    def starts_extra(self) -> bool:
        """Whether a bad or odd step starts a stretch now."""
        step = self._earlier_steps + self.steps
        if self.follows or step - self._last_extra_step < MIN_EXTRA_INTERVAL_STEPS:
            return False
        self._last_extra_step = step
        return True

    def end_stretch(self, seconds: float, fixed_seconds: float) -> None:
        """Ends a stretch of `steps` and selects the next one.

        Args:
            seconds: duration of the stretch.
            fixed_seconds: the part of it spent in Ammeter outside readings.
        """
        per_step = max(0.0, fixed_seconds / self.steps)
        if self.follows:
            self._followed_seconds = per_step
            interval = self._interval(seconds / self.steps)
            self.follows, self.length = interval == 0, interval or STRETCH_STEPS
        else:
            self._unfollowed_seconds = per_step
            self.follows, self.length = True, STRETCH_STEPS
        self._earlier_steps += self.steps
        self.steps = 0

    def _interval(self, step_seconds: float) -> int:
        """Returns the number of steps until the next stretch; 0 if following continues."""
        allowed = self.share * step_seconds - self._unfollowed_seconds
        extra = self._followed_seconds - self._unfollowed_seconds
        if extra <= allowed:
            return 0
        share = max(allowed / extra, STRETCH_STEPS / MAX_INTERVAL_STEPS)
        longest = min(MAX_INTERVAL_STEPS, self._earlier_steps + self.steps)
        return max(STRETCH_STEPS, min(longest, round(STRETCH_STEPS * (1 / share - 1))))
