"""Schedules readings so that they stay within their share of the step time.

Each kind of reading has a bucket. Every step adds budget * step time to it. A reading is allowed when the bucket
contains its usual cost, and subtracts its actual cost. The cost is therefore bounded for any model, and allowed and
refused readings are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ammeter.recording.schedule.attention import Attention
from ammeter.recording.schedule.bucket import UNLIMITED_SHARE, Bucket, Cost, Need, Usual
from ammeter.recording.schedule.norm_schedule import PAIR_INTERVAL, NormSchedule
from ammeter.recording.schedule.shared_steps import SharedSteps

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

NEEDS = {
    "norms": Need(65, 16_384),
    "full": Need(3, 1000),
    "weights": Need(3, 500),
    "kernels": Need(1, 1000),
}
"""The most frequent readings of each kind that a verdict needs; tests/agent/recording/test_needs.py compares them with
Verdict.needs, which is not imported in a training process."""

NEEDS_SHARE = 0.5
"""Share of the earnings of buckets without an unmet need that the others receive."""

PRESETS: dict[str, Callable[[float], tuple[float, float, float, float]]] = {
    "light": lambda budget: (0.4 * budget, 0.0, 0.0, 0.0),
    "default": lambda budget: (0.2 * budget, 0.1 * budget, 0.04 * budget, 0.04 * budget),
    "full": lambda budget: (UNLIMITED_SHARE, UNLIMITED_SHARE, 0.2 * budget, 0.2 * budget),
}
"""Share of step time for each of the READINGS, as a function of the budget. Except in `full`, the sum stays well below
the budget, because a reading also costs more than is measured (CACHE_MISS_FACTOR)."""


GUARANTEED_SECONDS = 0.02
"""In steps of this duration or longer norms are guaranteed: in every second step if the budget allows it, else less
often."""

MAX_GUARANTEED_INTERVAL = 32
"""Steps between two guaranteed readings, at most. If the budget does not suffice even for that, the bucket of the norms
alone decides."""

GUARANTEED_SHARE, MIN_GUARANTEED_SHARE = 0.75, 0.3
"""Share of the budget for guaranteed norms: what the fixed cost of a step leaves, within these limits. The lower one
keeps the norms of a run in view whose fixed cost uses up the budget: 0.3 % of the time at the default budget."""

PAIR_FACTOR = 1 + 1 / PAIR_INTERVAL
"""Cost of guaranteed readings with the second ones of their pairs."""

SMOOTHING = 0.05
"""Weight of the newest step in the mean step time, so that one slow step hardly changes the schedule."""

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
        self._buckets = [Bucket(share, patient=kind == "weights", need=NEEDS[kind]) for kind, share in shares]
        self.norms, self.full, self.weights, self.kernels = self._buckets
        self.norm_schedule = NormSchedule()
        self.shared_steps = SharedSteps()
        self._full_steps, self._fast_steps = Usual(), Usual()
        """Seconds that a step with a reading of gradients, without this reading, and a step on the fast path spend in
        Ammeter."""
        self._reading_seconds = 0.0
        """Wall time of the reading of gradients in the open step."""
        self.attention = Attention(math.inf if preset == "full" else FOLLOWING_SHARE * budget)
        self.budget = budget
        self._seconds = self._overhead = self._mean_seconds = 0.0
        self._steps = 0
        self._at_stretch = (0.0, 0.0)
        self._at_distribution = (0.0, 0.0)
        self._asked = range(0)

    def read_all(self, first: int, last: int) -> None:
        """Makes all tensors read in these steps, because a person asks for it; there is one such range at a time."""
        self._asked = range(first, last + 1)

    def asks(self, step: int) -> bool:
        """Whether all tensors are read in this step whatever the budget allows. Such a reading leaves no debt."""
        return step in self._asked

    def earn(self, step_seconds: float, overhead: float = 0.0, fast_steps: int = 0) -> None:
        """Adds the duration of a step, or of several on the fast path.

        The cost that no schedule can avoid is paid first.

        Args:
            step_seconds: their duration.
            overhead: the part of it spent in Ammeter.
            fast_steps: number of the steps, if they used the fast path.
        """
        steps = fast_steps or 1
        if fast_steps:
            self._fast_steps.add(overhead / steps)
        elif self._reading_seconds:
            self._full_steps.add(max(0.0, overhead - self._reading_seconds))
        self._reading_seconds = 0.0
        self._seconds += step_seconds
        self._overhead += overhead
        self._steps += steps
        weight = min(1.0, SMOOTHING * steps) if self._mean_seconds else 1.0
        self._mean_seconds += weight * (step_seconds / steps - self._mean_seconds)
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

    def due(self, step: int) -> bool:
        """Whether a reading has to be made in this step, or fits its budget."""
        if self.norms.fits or self.full.fits or self.weights.fits or self.kernels.fits:
            return True
        if self.shared_steps.is_due(step):
            return True
        return self.must_read_norms(step)

    def must_read_norms(self, step: int) -> bool:
        """Whether norms have to be read in this step, whatever their bucket contains."""
        return self.norms.share > 0 and self.norm_schedule.must_read(step)

    def reads_gradients(self, step: int) -> tuple[bool, bool]:
        """Returns whether all statistics of this step's gradients are read, and whether any are. Counts the answer."""
        full = self.full.allows() or (self.full.share > 0 and self.norm_schedule.must_read_all(step))
        full = full or self.asks(step)
        allowed = full or self.norms.allows()
        return full, allowed or self.must_read_norms(step)

    def spend_on_gradients(self, step: int, cost: Cost, *, full: bool) -> None:
        """Charges a reading of gradients. Guaranteed ones leave no debt: they have a share of their own."""
        in_debt = not (self.norm_schedule.interval or self.asks(step))
        (self.full if full else self.norms).spend(*cost, in_debt=in_debt)
        self.norm_schedule.read(step)
        self._reading_seconds += cost.wall

    def _distribute(self) -> None:
        now, before = self._fixed(), self._at_distribution
        seconds, fixed_seconds = now[0] - before[0], max(0.0, now[1] - before[1])
        available = max(seconds - CACHE_MISS_FACTOR * fixed_seconds / self.budget, MIN_READING_SHARE * seconds)
        self._share_out(available)
        self._at_distribution = now
        self._guarantee()

    def _guarantee(self) -> None:
        """Decides how often norms are guaranteed; following the calls then gets what they leave of the budget.

        A reading costs its own time and that of the callbacks which the fast path would have spared its step.
        """
        norms, budget = self.norms, self.budget * self._mean_seconds
        fixed = self._fast_steps.seconds or self._full_steps.seconds
        spared = max(0.0, self._full_steps.seconds - fixed)
        cost = PAIR_FACTOR * (norms.usual_cost + spared)
        left = max(budget - CACHE_MISS_FACTOR * fixed, MIN_GUARANTEED_SHARE * budget)
        interval = max(2, math.ceil(cost / min(left, GUARANTEED_SHARE * budget)))
        if self._mean_seconds < GUARANTEED_SECONDS or not norms.share or interval > MAX_GUARANTEED_INTERVAL:
            interval = 0
        self.norm_schedule.interval = interval
        if norms.share < UNLIMITED_SHARE:
            used = cost / interval / self._mean_seconds if interval else 0.0
            self.attention.share = min(FOLLOWING_SHARE * self.budget, self.budget - used)

    def _share_out(self, available: float) -> None:
        """Adds earnings to the buckets; needs have priority over further readings."""
        steps, self._steps = self._steps, 0
        owed = given = 0.0
        for bucket in self._buckets:
            bucket.pass_steps(steps)
            if bucket.is_owed():
                owed += bucket.share
            elif bucket.share < UNLIMITED_SHARE:
                given += NEEDS_SHARE * bucket.share
        for bucket in self._buckets:
            factor = 1.0 if not owed else 1 + given / owed if bucket.is_owed() else 1 - NEEDS_SHARE
            bucket.earn(available, factor * bucket.share)

    def _fixed(self) -> tuple[float, float]:
        """Returns (seconds of training, seconds of Ammeter outside readings) so far."""
        return self._seconds, self._overhead - sum([bucket.wall_seconds for bucket in self._buckets])
