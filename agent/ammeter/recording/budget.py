"""Schedules readings so that they stay within their share of the step time.

Each kind of reading has a bucket. Every step adds budget * step time to it. A reading is allowed when the bucket
contains its last cost, and subtracts its actual cost. The cost is therefore bounded for any model, and allowed and
refused readings are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable

EVERY = math.inf
"""Share of a reading that is made at every opportunity."""

CREDIT_SECONDS = 0.01
"""Initial level of a bucket: a new run is read densely, and 0.01 s is negligible for a run."""


class Bucket:
    """Time budget in seconds of one kind of reading. Not thread-safe."""

    def __init__(self, share: float, credit: float = CREDIT_SECONDS, *, patient: bool = False) -> None:
        """Creates a bucket.

        Args:
            share: seconds earned per second of training, such as 0.005; 0 for never, infinite for always.
            credit: initial level in seconds.
            patient: if set, credit left after a reading is withheld until the run is twice as old, so that the next
                readings occur after the run has progressed.
        """
        self.share = share
        self._patient = patient
        self._kept = self._age = self._until = 0.0
        self.cost = 0.0
        self.device_cost = 0.0
        self.taken = 0
        self.spent = 0.0
        self.refused = 0
        self.fits = share > 0
        self._level = credit
        self._needed = 0.0
        self._cap = max(credit, CREDIT_SECONDS)

    def earn(self, step_seconds: float) -> None:
        """Adds the earnings of a step; the level is capped.

        The cap is the larger of the credit and twice the smoothed cost of a reading.
        """
        if not math.isinf(self.share):
            self._age += step_seconds
            if self._kept and self._age >= self._until:
                self._level, self._kept = self._level + self._kept, 0.0
            self._level = min(self._level + self.share * step_seconds, max(self._cap, 2 * self._needed))
            self._settle()

    def allows(self) -> bool:
        """Whether the next reading fits the budget; counts the answer.

        The first reading fits because its cost is not known yet. With a share of 0 none fits.
        """
        self.taken += self.fits
        self.refused += not self.fits
        return self.fits

    def forgo(self) -> None:
        """Cancels an allowed reading; the next one must first earn CREDIT_SECONDS."""
        self._level = self._needed - CREDIT_SECONDS
        self._settle()

    def spend(self, seconds: float) -> None:
        """Charges a reading.

        The cost is smoothed, so that one preempted reading does not block the next.
        """
        self.cost = seconds if self.cost == 0 else 0.7 * self.cost + 0.3 * seconds
        self._needed = self.cost + self.device_cost
        self._level -= seconds
        self.spent += seconds
        if self._patient and self._level > self._needed:
            self._level, self._kept, self._until = 0.0, self._kept + self._level, 2 * self._age
        self._settle()

    def spend_on_device(self, seconds: float) -> None:
        """Charges device time of a reading, which is known one or more steps later."""
        self.device_cost = seconds if self.device_cost == 0 else 0.7 * self.device_cost + 0.3 * seconds
        self._needed = self.cost + self.device_cost
        self._level -= seconds
        self._settle()

    def _settle(self) -> None:
        self.fits = self.share > 0 and (self._level >= self._needed or self.share == EVERY)


LEAST = 0.15
"""Minimum share of the budget for readings when the fixed cost uses up the rest: a run of tiny steps must be read,
too."""

CACHES = 1.5
"""Factor between the cost of per-step work to the program and the time that Ammeter's clock measures, from bench/agent:
the program has cache misses afterwards for the lines that were evicted."""

POUR_SECONDS = 0.02
"""Training time added to the buckets at once, so that a run of tiny steps does not pay for bookkeeping at each step."""

READINGS = ("norms", "full", "weights", "kernels")
"""Readings that can be sampled: gradient norms, full gradient statistics, weight slices, a kernel census."""

PRESETS: dict[str, Callable[[float], tuple[float, float, float, float]]] = {
    "light": lambda budget: (0.4 * budget, 0.0, 0.0, 0.0),
    "default": lambda budget: (0.2 * budget, 0.1 * budget, 0.04 * budget, 0.04 * budget),
    "full": lambda budget: (EVERY, EVERY, 0.2 * budget, 0.2 * budget),
}
"""Share of step time for each of the READINGS, as a function of the budget. Except in `full`, the sum stays well below
the budget, because a reading also costs more than is measured (CACHES)."""


FOLLOWING = 0.5
"""Share of the budget for work that is done in every step, independent of the model's size."""

YOUNG = 64
STRETCH = 8
SELDOM = 1024
ROUSED = SELDOM // 8
"""Lengths in steps. YOUNG: a new run is followed this long. STRETCH: length of a later stretch of followed steps.
SELDOM: at least one stretch occurs in this many steps. ROUSED: minimum distance between stretches that bad or odd steps
start."""


class Attention:
    """Selects the followed steps, in which the order of the program's calls is checked.

    Following adds a small cost to each call. If that is too much for this program's short steps, it is done in
    stretches: a mistake in the order of calls recurs in every step. From time to time a bad or odd step starts a
    stretch by itself.
    """

    def __init__(self, share: float) -> None:
        """Takes the share of step time for all work done in every step."""
        self.follows = True
        self.steps = 0
        self.length = YOUNG
        self._share = share
        self._following = self._resting = 0.0
        self._before = 0
        self._roused = -ROUSED

    def roused(self) -> bool:
        """Whether a bad or odd step starts a stretch now."""
        steps = self._before + self.steps
        if self.follows or steps - self._roused < ROUSED:
            return False
        self._roused = steps
        return True

    def turn(self, seconds: float, fixed: float) -> None:
        """Ends a stretch of `steps` and selects the next one.

        Args:
            seconds: duration of the stretch.
            fixed: the part of it spent in Ammeter outside readings.
        """
        each = max(0.0, fixed / self.steps)
        if self.follows:
            self._following = each
            rest = self._rest(seconds / self.steps)
            self.follows, self.length = rest == 0, rest or STRETCH
        else:
            self._resting = each
            self.follows, self.length = True, STRETCH
        self._before += self.steps
        self.steps = 0

    def _rest(self, step_seconds: float) -> int:
        """Returns the number of steps until the next stretch; 0 if following continues."""
        allowed, more = self._share * step_seconds - self._resting, self._following - self._resting
        if more <= allowed:
            return 0
        duty = max(allowed / more, STRETCH / SELDOM)
        return max(STRETCH, min(SELDOM, round(STRETCH * (1 / duty - 1))))


class Governor:
    """The budget of one run, divided among the readings that can be sampled."""

    def __init__(self, budget: float, preset: str = "default") -> None:
        """Creates the buckets of a preset.

        Args:
            budget: share of step time, 0.01 for 1 %.
            preset: one of PRESETS.

        Raises:
            ValueError: the budget is outside (0, 1], or the preset is unknown.
        """
        if not 0 < budget <= 1:
            raise ValueError(f"budget is {budget!r}; use a share of step time above 0 and at most 1, such as 0.01")
        if preset not in PRESETS:
            raise ValueError(f"preset is {preset!r}; use one of {', '.join(PRESETS)}")
        self.preset = preset
        shares = zip(READINGS, PRESETS[preset](budget), strict=True)
        self._buckets = [Bucket(share, patient=kind == "weights") for kind, share in shares]
        self.norms, self.full, self.weights, self.kernels = self._buckets
        self.attention = Attention(math.inf if preset == "full" else FOLLOWING * budget)
        self._budget = budget
        self._seconds = self._ours = 0.0
        self._turned = (0.0, 0.0)
        self._poured = (0.0, 0.0)

    def earn(self, step_seconds: float, overhead: float = 0.0) -> None:
        """Adds the duration of a step, of which `overhead` seconds were spent in Ammeter.

        The cost that no schedule can avoid is paid first.
        """
        self._seconds += step_seconds
        self._ours += overhead
        if self._seconds - self._poured[0] >= POUR_SECONDS:
            self._pour()

    def follows(self, urgent: bool) -> bool:
        """Whether the next step is followed. Called once per closed step.

        Args:
            urgent: the closed step was bad or odd.
        """
        attention = self.attention
        attention.steps += 1
        if attention.steps >= attention.length or (urgent and attention.roused()):
            now = self._fixed()
            attention.turn(now[0] - self._turned[0], now[1] - self._turned[1])
            self._turned = now
        return attention.follows

    def due(self) -> bool:
        """Whether any reading fits the budget of the next step."""
        return self.norms.fits or self.full.fits or self.weights.fits or self.kernels.fits

    def _pour(self) -> None:
        seconds, fixed = (now - before for now, before in zip(self._fixed(), self._poured, strict=True))
        left = max(seconds - CACHES * max(0.0, fixed) / self._budget, LEAST * seconds)
        for bucket in self._buckets:
            bucket.earn(left)
        self._poured = self._fixed()

    def _fixed(self) -> tuple[float, float]:
        """Returns (seconds of training, seconds of Ammeter outside readings) so far."""
        return self._seconds, self._ours - sum([bucket.spent for bucket in self._buckets])
