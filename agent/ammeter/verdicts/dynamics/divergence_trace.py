"""One training loss over the steps of a run, and the episode in which it is far above its level.

The level only follows losses that are older than LAG_LOSSES, so that an exponential rise does not raise its own level.
"""

from __future__ import annotations

import math
import struct

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

Floats = npt.NDArray[np.float32]

UNIT_LOSS = 1.0
"""Smallest level. Losses that start near zero, such as those of distillation and reinforcement learning, have no scale
of their own there."""

FAR_RATIO = 3.0
"""Ratio to the level from which a loss is far. Warm-up without a clip and restarts of a schedule double a loss."""

EXPLODED_RATIO = 1e3
"""Ratio of an explosion. Sums over sequences of other lengths differ by 100 at most, and weights of rare samples
multiply a loss by as much."""

FALLEN_RATIO = EXPLODED_RATIO
"""Ratio from which a negative loss counts as far, by its magnitude: losses that are negative by nature, as logarithms
of densities, fall slowly, and the level follows them."""

ENORMOUS_RATIO = 1e6
"""Ratio that needs no longer series: data and weights of samples do not span six decades. A negative loss is also far
at this ratio to the first one, however slowly it has fallen."""

MIN_EXPLODED, MIN_ENORMOUS = 8, 3
"""Losses of an episode above a thousand times, and a million times, the level that are an explosion. Four or five
batches in a row with a mistaken weight are a spike and end before."""

MIN_EXPLOSIONS = 2
"""Explosions in an episode after which the run may have lost what it had learnt; a single one is a bad batch."""

LAG_LOSSES = 32
"""Losses until one counts for the level. A rise by 4 % in each step is then far from it."""

CALM_LOSSES = 8
"""Consecutive losses near the level that end an episode: a bad batch needs one, a spike a few."""

SETTLED_LOSSES = 96
"""Losses of an episode after which they are the run's own level, as after a change of data or of the loss function. A
loss that grows with what is learnt, such as the error of values in reinforcement learning, takes longer to explode."""


def magnitude(loss: float, reference: float) -> float:
    """Returns the ratio of a loss to its reference; that of a fallen loss without its sign."""
    ratio = loss / reference
    return abs(ratio) if ratio <= -FALLEN_RATIO else ratio


MAX_AFTER_JUMP = 3.0
"""Ratio of the largest loss of an episode to its first far one, up to which the loss jumped once. Losses of batches
scatter by less; a loss that steps drive up multiplies in each of them."""

FALL_LOSSES = 8
MAX_FALLING, MAX_FALLEN = 0.9, 1 / 3
"""Ratio of the median of FALL_LOSSES losses to that at the beginning of the episode, or of the last 32 losses, and to
the largest loss, up to which the loss falls. Training reduces the loss of a new objective from its first step on; a
diverged loss scatters about its height, and the medians of 8 losses that scatter by a sixth differ by 7 %."""


class Trace(msgspec.Struct, frozen=True, array_like=True):
    """One loss.

    Attributes:
        first: The loss that was read earliest.
        level: Largest absolute loss outside of episodes, with a lag.
        tail: The last LAG_LOSSES losses as float32; after an episode, those since its end.
        since: Number of losses in the present episode; 0 outside of one.
        left: Step of the episode's first far loss.
        before: The loss before it.
        peak: Loss of the episode with the largest magnitude.
        far, exploded, enormous: Losses since the last one near the level that exceed each ratio.
        explosions: Losses of the episode that exceed EXPLODED_RATIO.
        near: Consecutive losses near the level.
        aftermath: Losses since an episode with an explosion; -1 without one.
        nonfinite: Whether the last loss was NaN or Inf.
        entry: The episode's first far loss.
        early: Median of the episode's first FALL_LOSSES losses; NaN before.
    """

    first: float = math.nan
    level: float = 0.0
    tail: bytes = b""
    since: int = 0
    left: int = -1
    before: float = math.nan
    peak: float = 0.0
    far: int = 0
    exploded: int = 0
    enormous: int = 0
    explosions: int = 0
    near: int = 0
    aftermath: int = -1
    nonfinite: bool = False
    entry: float = math.nan
    early: float = math.nan

    @property
    def reference(self) -> float:
        return max(UNIT_LOSS, abs(self.first), self.level) if self.first == self.first else UNIT_LOSS

    @property
    def is_calm(self) -> bool:
        return not self.since and self.aftermath < 0 and not self.nonfinite

    @property
    def last(self) -> float:
        return struct.unpack_from("<f", self.tail, len(self.tail) - 4)[0] if self.tail else math.nan

    @property
    def losses(self) -> Floats:
        """The last finite losses."""
        return np.frombuffer(self.tail, "<f4")

    @property
    def has_exploded(self) -> bool:
        return self.exploded >= MIN_EXPLODED or self.enormous >= MIN_ENORMOUS

    @property
    def jumped(self) -> bool:
        """Whether the episode's first far loss is about as large as its largest one."""
        return abs(self.peak) <= MAX_AFTER_JUMP * abs(self.entry)

    @property
    def falls(self) -> bool:
        """Whether the losses of a long episode fall, or have fallen far."""
        losses = self.losses[-self.since :]
        early, last = float(np.median(losses[:FALL_LOSSES])), float(np.median(losses[-FALL_LOSSES:]))
        early = early if math.isnan(self.early) else max(early, self.early)
        return last <= max(MAX_FALLING * early, MAX_FALLEN * self.peak)

    def median(self, count: int) -> float:
        """Returns the median of the last `count` losses; NaN if there are fewer."""
        losses = self.losses[-count:]
        return float(np.median(losses)) if len(losses) == count else math.nan

    def quiet(self, losses: Floats) -> int:
        """Returns the number of leading losses that are finite and near the level, for a calm trace."""
        if not len(losses):
            return 0
        first = float(losses[0]) if math.isnan(self.first) else self.first
        lowest, floor = max(UNIT_LOSS, abs(first), self.level), _floor(first)
        if float(losses.max()) <= FAR_RATIO * lowest and float(losses.min()) > max(-FALLEN_RATIO * lowest, floor):
            return len(losses)  # near the lowest level that any of them is compared with
        own = np.abs(np.concatenate([np.frombuffer(self.tail, "<f4"), losses]).astype(np.float64))
        highest = np.maximum.accumulate(own)
        before = len(own) - len(losses)
        aged = np.arange(before, len(own)) - LAG_LOSSES
        levels = np.where(aged > 0, np.maximum(lowest, highest[np.maximum(aged - 1, 0)]), lowest)
        with np.errstate(invalid="ignore"):
            far = ~(losses <= FAR_RATIO * levels) | (losses <= np.maximum(-FALLEN_RATIO * levels, floor))
        far |= ~np.isfinite(losses)
        return int(np.argmax(far)) if far.any() else len(losses)

    def accept(self, losses: Floats) -> Trace:
        """Adds losses near the level."""
        if not len(losses):
            return self
        tail = self.tail + losses.tobytes()
        aged = np.frombuffer(tail, "<f4")[:-LAG_LOSSES]
        return self._accepted(float(losses[0]), tail, float(np.abs(aged).max()) if len(aged) else 0.0)

    def _accept_one(self, loss: float) -> Trace:
        """Gives the result of accept() for a single loss without arrays, in a fraction of the time."""
        tail = self.tail + struct.pack("<f", loss)
        aged = abs(struct.unpack_from("<f", tail)[0]) if len(tail) > 4 * LAG_LOSSES else 0.0
        return self._accepted(loss, tail, aged)

    def _accepted(self, loss: float, tail: bytes, aged: float) -> Trace:
        """Adds losses to the tail. aged: the largest absolute loss that leaves it."""
        first = loss if math.isnan(self.first) else self.first
        return replace(self, first=first, level=max(self.level, aged), tail=tail[-4 * LAG_LOSSES :])

    def add(self, step: int, loss: float) -> Trace:
        """Adds one loss of any kind."""
        if not math.isfinite(loss):
            return self if self.nonfinite else replace(self, nonfinite=True)
        trace = replace(self, nonfinite=False) if self.nonfinite else self
        floor = _floor(trace.first)
        ratio = loss / floor * ENORMOUS_RATIO if loss <= floor else magnitude(loss, trace.reference)
        if not trace.since and (ratio <= FAR_RATIO or math.isnan(trace.first)):
            after = -1 if trace.aftermath < 0 else trace.aftermath + 1
            accepted = trace._accept_one(loss)
            return accepted if after == trace.aftermath else replace(accepted, aftermath=after)
        if not trace.since:
            trace = replace(trace, left=step, before=trace.last, peak=loss, far=0, explosions=0, aftermath=-1)
            trace = replace(trace, exploded=0, enormous=0, entry=loss, early=math.nan)
        is_near, explodes = ratio <= FAR_RATIO, ratio >= EXPLODED_RATIO
        return (
            replace(
                trace,
                tail=(trace.tail + struct.pack("<f", loss))[-4 * LAG_LOSSES :],
                since=trace.since + 1,
                peak=max(trace.peak, loss, key=abs),
                near=trace.near + 1 if is_near else 0,
                far=0 if is_near else trace.far + 1,
                exploded=0 if is_near else trace.exploded + explodes,
                enormous=0 if is_near else trace.enormous + (ratio >= ENORMOUS_RATIO),
                explosions=trace.explosions + explodes,
            )
            ._with_early()
            ._ended()
        )

    def _with_early(self) -> Trace:
        return replace(self, early=self.median(FALL_LOSSES)) if self.since == FALL_LOSSES else self

    def settled(self) -> Trace:
        """Ends the episode and accepts its losses as the level of the run."""
        highest = float(np.abs(np.frombuffer(self.tail, "<f4")).max()) if self.tail else 0.0
        return replace(self, since=0, near=0, level=max(self.level, highest))

    def _ended(self) -> Trace:
        if self.near >= CALM_LOSSES:
            after = 0 if self.explosions >= MIN_EXPLOSIONS else -1
            return replace(self, since=0, near=0, aftermath=after, tail=self.tail[-4 * CALM_LOSSES :])
        return self.settled() if self.since >= SETTLED_LOSSES else self


def _floor(first: float) -> float:
    """Returns the loss from which on a fall is far however slow it is. first: NaN before any loss."""
    return -ENORMOUS_RATIO * (max(UNIT_LOSS, abs(first)) if first == first else UNIT_LOSS)
