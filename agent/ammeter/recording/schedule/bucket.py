"""The time budget of one kind of reading, and the cost of a reading.

Costs are CPU times of the thread that reads, step times are wall times: a reading during which the machine runs another
process costs the training nothing that it would not have lost anyway (docs/decisions/0042).
"""

from __future__ import annotations

import math
from collections import deque
from time import perf_counter, thread_time
from typing import NamedTuple

UNLIMITED_SHARE = math.inf
"""Share of a reading that is made at every opportunity."""

CREDIT_SECONDS = 0.01
"""Initial level of a bucket: a new run is read densely, and 0.01 s is negligible for a run."""

USUAL_OF = 5
"""The usual cost is the median of so many: up to two outliers, such as a first use of memory, do not count."""


class Cost(NamedTuple):
    """The duration of a reading in seconds: CPU time of its thread, and wall time."""

    cpu: float
    wall: float


def clocks() -> Cost:
    """Returns the clocks of the calling thread; cost_since() the time since then."""
    return Cost(thread_time(), perf_counter())


def cost_since(began: Cost) -> Cost:
    return Cost(thread_time() - began.cpu, perf_counter() - began.wall)


class Usual:
    """The median of the latest USUAL_OF costs in seconds, the lower one of two; 0 before the first."""

    def __init__(self) -> None:
        self._costs: deque[float] = deque(maxlen=USUAL_OF)
        self.seconds = 0.0

    def __len__(self) -> int:
        return len(self._costs)

    def add(self, seconds: float) -> None:
        self._costs.append(seconds)
        self.seconds = sorted(self._costs)[(len(self._costs) - 1) // 2]


class Need(NamedTuple):
    """The number of readings that verdicts need in each `within` steps."""

    readings: int
    within: int


NO_NEED = Need(0, 1)


class Bucket:
    """Time budget in seconds of one kind of reading. Not thread-safe."""

    def __init__(
        self, share: float, credit: float = CREDIT_SECONDS, *, patient: bool = False, need: Need = NO_NEED
    ) -> None:
        """Creates a bucket.

        Args:
            share: seconds earned per second of training, such as 0.005; 0 for never, infinite for always.
            credit: initial level in seconds.
            patient: if set, credit left after a reading is withheld until the run is twice as old, so that the next
                readings occur after the run has progressed.
            need: readings that have priority.
        """
        self.share = share
        self._patient = patient
        self._withheld = self._age = self._withheld_until = 0.0
        self.device_cost = 0.0
        self.allowed = 0
        self.wall_seconds = 0.0
        self.refused = 0
        self._need = need
        self._needed_readings, self._window_steps = need.readings, 0
        self._usual = Usual()
        self.fits = share > 0
        self._level = credit
        self._needed = 0.0
        self._cap = max(credit, CREDIT_SECONDS)

    @property
    def cost(self) -> float:
        """Seconds of a usual reading on the host."""
        return self._usual.seconds

    @property
    def usual_cost(self) -> float:
        """Seconds of a usual reading, on the host and on its device.

        0 before the second one: the first is slower, because nothing is prepared.
        """
        return self._needed if len(self._usual) > 1 else 0.0

    def is_owed(self) -> bool:
        """Whether readings that verdicts need are still to be made, and the level does not suffice for them yet."""
        return self._needed_readings > 0 and 0 < self.share < math.inf and self._level < self._limit

    def pass_steps(self, steps: int) -> None:
        """Counts steps. The need begins anew every `within` of them."""
        self._window_steps += steps
        if self._window_steps >= self._need.within:
            self._needed_readings, self._window_steps = self._need.readings, 0

    def earn(self, step_seconds: float, share: float | None = None) -> None:
        """Adds the earnings of a step; the level is capped.

        The cap is the larger of the credit and twice the usual cost of a reading.

        Args:
            share: seconds per second of this step, if it is not the bucket's own.
        """
        if not math.isinf(self.share):
            self._age += step_seconds
            if self._withheld and self._age >= self._withheld_until:
                self._level, self._withheld = self._level + self._withheld, 0.0
            earned = (self.share if share is None else share) * step_seconds
            self._level = min(self._level + earned, self._limit)
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

    def spend(self, seconds: float, wall_seconds: float | None = None, *, in_debt: bool = True) -> None:
        """Charges a reading.

        The next one is allowed when the level contains the usual cost, so that one outlier does not block it.

        Args:
            seconds: CPU time.
            wall_seconds: wall time, if it differs.
            in_debt: whether the level may fall below zero. A reading that has to be made although the bucket does not
                allow it uses up the level and leaves no debt.
        """
        self._usual.add(seconds)
        self._needed = self.cost + self.device_cost
        self._level = self._level - seconds if in_debt else max(self._level - seconds, min(self._level, 0.0))
        self.wall_seconds += seconds if wall_seconds is None else wall_seconds
        self._needed_readings -= self._needed_readings > 0
        if self._patient and self._level > self._needed:
            self._level, self._withheld, self._withheld_until = 0.0, self._withheld + self._level, 2 * self._age
        self._settle()

    def charge(self, cost: Cost) -> None:
        """Charges further work on a reading, which is done one or more steps later and not for every reading."""
        self._level -= cost.cpu
        self.wall_seconds += cost.wall
        self._settle()

    def spend_on_device(self, seconds: float) -> None:
        """Charges device time of a reading, which is known one or more steps later."""
        self.device_cost = seconds if self.device_cost == 0 else 0.7 * self.device_cost + 0.3 * seconds
        self._needed = self.cost + self.device_cost
        self._level -= seconds
        self._settle()

    @property
    def _limit(self) -> float:
        return max(self._cap, 2 * self._needed)

    def _settle(self) -> None:
        self.fits = self.share > 0 and (self._level >= self._needed or self.share == UNLIMITED_SHARE)
