"""When to read, so that reading stays within its share of the step time.

Each kind of reading has a bucket: every step pours budget x step time into it, a reading is allowed when the bucket
holds what it last cost, and takes that out. So the cost is bounded for any model, and what was decided is counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable

EVERY = math.inf
"""The share of a reading that is taken whenever there is something to read."""

CREDIT_SECONDS = 0.01
"""What a bucket holds at first: a young run is read densely, and a hundredth of a second is nothing to a run."""


class Bucket:
    """Seconds that one kind of reading may spend. Not shared between threads."""

    def __init__(self, share: float, credit: float = CREDIT_SECONDS, *, patient: bool = False) -> None:
        """share: seconds earned per second of training, such as 0.005; 0 for never, infinite for always. patient: what
        a reading leaves of the credit is kept until the run is twice as old, so that it is read again when it has got
        somewhere."""
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
        """A step took this long. A bucket holds at most its credit or twice the last cost."""
        if not math.isinf(self.share):
            self._age += step_seconds
            if self._kept and self._age >= self._until:
                self._level, self._kept = self._level + self._kept, 0.0
            self._level = min(self._level + self.share * step_seconds, max(self._cap, 2 * self._needed))
            self._settle()

    def allows(self) -> bool:
        """Whether the next reading fits. The first does, its cost is not known yet; with a share of 0 none does."""
        self.taken += self.fits
        self.refused += not self.fits
        return self.fits

    def forgo(self) -> None:
        """The reading that was allowed cannot be taken: its turn is over, and the next one comes as late as a first."""
        self._level = self._needed - CREDIT_SECONDS
        self._settle()

    def spend(self, seconds: float) -> None:
        """A reading took this long; smoothed, so that one preempted reading does not stop the next."""
        self.cost = seconds if self.cost == 0 else 0.7 * self.cost + 0.3 * seconds
        self._needed = self.cost + self.device_cost
        self._level -= seconds
        self.spent += seconds
        if self._patient and self._level > self._needed:
            self._level, self._kept, self._until = 0.0, self._kept + self._level, 2 * self._age
        self._settle()

    def spend_on_device(self, seconds: float) -> None:
        """The device worked this long for a reading, as is known a step or more behind it."""
        self.device_cost = seconds if self.device_cost == 0 else 0.7 * self.device_cost + 0.3 * seconds
        self._needed = self.cost + self.device_cost
        self._level -= seconds
        self._settle()

    def _settle(self) -> None:
        self.fits = self.share > 0 and (self._level >= self._needed or self.share == EVERY)


LEAST = 0.15
"""Share of the budget that readings get even where the fixed cost eats it up: a run of tiny steps is seen too."""

CACHES = 1.5
"""What we do in every step costs the program this much of what our own clock says, as bench/agent measures it: the
program misses afterwards what was driven out of the caches."""

POUR_SECONDS = 0.02
"""Time of training that is handed out at once, so that a run of tiny steps does not pay for bookkeeping at each."""

READINGS = ("norms", "full", "weights", "kernels")
"""What can be sampled: gradient norms, full gradient statistics, slices of the weights, a census of the kernels."""

PRESETS: dict[str, Callable[[float], tuple[float, float, float, float]]] = {
    "light": lambda budget: (0.4 * budget, 0.0, 0.0, 0.0),
    "default": lambda budget: (0.2 * budget, 0.1 * budget, 0.04 * budget, 0.04 * budget),
    "full": lambda budget: (EVERY, EVERY, 0.2 * budget, 0.2 * budget),
}
"""What a preset makes of the budget: for each of the READINGS, its share of step time. Together they stay well below
it, for the same reason."""


FOLLOWING = 0.5
"""Share of the budget for what is done in every step, the same however large the model is."""

YOUNG = 64
STRETCH = 8
SELDOM = 1024
ROUSED = SELDOM // 8
"""Steps: a young run's calls are followed; later so many in a row; and at least one stretch in so many. Between two
stretches that bad or odd steps have started."""


class Attention:
    """In which steps the order of the program's calls is followed, which costs a little at each of them.

    Where that is too much for steps as short as this program's, it is done in stretches: a mistake in the order of
    calls is made again in every step. Now and then a bad or odd step starts a stretch by itself.
    """

    def __init__(self, share: float) -> None:
        """share: of step time, for all that is done in every step."""
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
        """A stretch of `steps` is over, which took this long, `fixed` of it ours in any case."""
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
        """Steps until the next stretch; 0 where following goes on."""
        allowed, more = self._share * step_seconds - self._resting, self._following - self._resting
        if more <= allowed:
            return 0
        duty = max(allowed / more, STRETCH / SELDOM)
        return max(STRETCH, min(SELDOM, round(STRETCH * (1 / duty - 1))))


class Governor:
    """The budget of one run, shared out between the readings that can be sampled."""

    def __init__(self, budget: float, preset: str = "default") -> None:
        """budget: share of step time, 0.01 for 1 %. Raises ValueError outside (0, 1] or for an unknown preset."""
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
        """A step took this long, and `overhead` of it was ours: what no schedule can leave out is paid first."""
        self._seconds += step_seconds
        self._ours += overhead
        if self._seconds - self._poured[0] >= POUR_SECONDS:
            self._pour()

    def follows(self, urgent: bool) -> bool:
        """Whether the next step's calls are followed. Asked once when a step closes; urgent: it was bad or odd."""
        attention = self.attention
        attention.steps += 1
        if attention.steps >= attention.length or (urgent and attention.roused()):
            now = self._fixed()
            attention.turn(now[0] - self._turned[0], now[1] - self._turned[1])
            self._turned = now
        return attention.follows

    def due(self) -> bool:
        """Whether any reading fits into the next step."""
        return self.norms.fits or self.full.fits or self.weights.fits or self.kernels.fits

    def _pour(self) -> None:
        seconds, fixed = (now - before for now, before in zip(self._fixed(), self._poured, strict=True))
        left = max(seconds - CACHES * max(0.0, fixed) / self._budget, LEAST * seconds)
        for bucket in self._buckets:
            bucket.earn(left)
        self._poured = self._fixed()

    def _fixed(self) -> tuple[float, float]:
        """(seconds of training, what of them was ours and no reading) so far."""
        return self._seconds, self._ours - sum([bucket.spent for bucket in self._buckets])
