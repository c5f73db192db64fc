"""Schedules readings so that they stay within their share of the step time.

Each kind of reading has a bucket. Every step adds budget * step time to it. A reading is allowed when the bucket
contains its last cost, and subtracts its actual cost. The cost is therefore bounded for any model, and allowed and
refused readings are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ammeter.recording.attention import Attention

UNLIMITED_SHARE = math.inf
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
        self._withheld = self._age = self._withheld_until = 0.0
        self.cost = 0.0
        self.device_cost = 0.0
        self.allowed = 0
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
            if self._withheld and self._age >= self._withheld_until:
                self._level, self._withheld = self._level + self._withheld, 0.0
            self._level = min(self._level + self.share * step_seconds, max(self._cap, 2 * self._needed))
            self._settle()

    def allows(self) -> bool:
        """Whether the next reading fits the budget; counts the answer.

        The first reading fits because its cost is not known yet. With a share of 0 none fits.
        """
        self.allowed += self.fits
        self.refused += not self.fits
        return self.fits

    def cancel(self) -> None:
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
            self._level, self._withheld, self._withheld_until = 0.0, self._withheld + self._level, 2 * self._age
        self._settle()

    def spend_on_device(self, seconds: float) -> None:
        """Charges device time of a reading, which is known one or more steps later."""
        self.device_cost = seconds if self.device_cost == 0 else 0.7 * self.device_cost + 0.3 * seconds
        self._needed = self.cost + self.device_cost
        self._level -= seconds
        self._settle()

    def _settle(self) -> None:
        self.fits = self.share > 0 and (self._level >= self._needed or self.share == UNLIMITED_SHARE)


MIN_READING_SHARE = 0.15
"""Minimum share of the budget for readings when the fixed cost uses up the rest: a run of tiny steps must be read,
too."""

CACHE_MISS_FACTOR = 1.5
"""Factor between the cost of per-step work to the program and the time that Ammeter's clock measures, from bench/agent:
the program has cache misses afterwards for the lines that were evicted."""

EARN_SECONDS = 0.02
"""Training time added to the buckets at once, so that a run of tiny steps does not pay for bookkeeping at each step."""

READINGS = ("norms", "full", "weights", "kernels")
"""Readings that can be sampled: gradient norms, full gradient statistics, weight slices, a kernel census."""

PRESETS: dict[str, Callable[[float], tuple[float, float, float, float]]] = {
    "light": lambda budget: (0.4 * budget, 0.0, 0.0, 0.0),
    "default": lambda budget: (0.2 * budget, 0.1 * budget, 0.04 * budget, 0.04 * budget),
    "full": lambda budget: (UNLIMITED_SHARE, UNLIMITED_SHARE, 0.2 * budget, 0.2 * budget),
}
"""Share of step time for each of the READINGS, as a function of the budget. Except in `full`, the sum stays well below
the budget, because a reading also costs more than is measured (CACHE_MISS_FACTOR)."""


FOLLOWING_SHARE = 0.5
"""Share of the budget for work that is done in every step, independent of the model's size."""


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
        self.attention = Attention(math.inf if preset == "full" else FOLLOWING_SHARE * budget)
        self._budget = budget
        self._seconds = self._overhead = 0.0
        self._at_stretch = (0.0, 0.0)
        self._at_distribution = (0.0, 0.0)

    def earn(self, step_seconds: float, overhead: float = 0.0) -> None:
        """Adds the duration of a step, of which `overhead` seconds were spent in Ammeter.

        The cost that no schedule can avoid is paid first.
        """
        self._seconds += step_seconds
        self._overhead += overhead
        if self._seconds - self._at_distribution[0] >= EARN_SECONDS:
            self._distribute()

    def follows(self, is_urgent: bool) -> bool:
        """Whether the next step is followed. Called once per closed step.

        Args:
            is_urgent: the closed step was bad or odd.
        """
        attention = self.attention
        attention.steps += 1
        if attention.steps >= attention.length or (is_urgent and attention.starts_extra()):
            now = self._fixed()
            attention.end_stretch(now[0] - self._at_stretch[0], now[1] - self._at_stretch[1])
            self._at_stretch = now
        return attention.follows

    def due(self) -> bool:
        """Whether any reading fits the budget of the next step."""
        return self.norms.fits or self.full.fits or self.weights.fits or self.kernels.fits

    def _distribute(self) -> None:
        now, before = self._fixed(), self._at_distribution
        seconds, fixed_seconds = now[0] - before[0], max(0.0, now[1] - before[1])
        available = max(seconds - CACHE_MISS_FACTOR * fixed_seconds / self._budget, MIN_READING_SHARE * seconds)
        for bucket in self._buckets:
            bucket.earn(available)
        self._at_distribution = now

    def _fixed(self) -> tuple[float, float]:
        """Returns (seconds of training, seconds of Ammeter outside readings) so far."""
        return self._seconds, self._overhead - sum([bucket.spent for bucket in self._buckets])
