"""Keeps level, spread and extremes of a run's gradient norms so far.

All values are logarithms, in which norms spread symmetrically: a batch with twice the norm is as likely as one with
half of it.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

Floats = npt.NDArray[np.float32]

BLOCK_READINGS = 64
"""Readings per level. The level is recomputed every 64 readings from the last 64: long enough for stable quartiles,
short enough to follow a warm-up or a decay. Before the first 64 there is no level, because rare batches have not
occurred yet."""

EARLY_READINGS = 16
"""Readings from which an enormous norm is recognised without a level: by then the norms of the first steps, which fall,
and of weights that start at zero, which rise, have occurred."""

MAX_BLOCKS = 16
"""Blocks with stored extremes, a thousand readings. Norms that occurred in them are normal for the run."""

RECENT_READINGS = 8
"""The latest readings, which distinguish a jump from a climb."""

QUARTILE_DISTANCE = 1.349
"""Distance of the quartiles of a normal distribution in standard deviations: 1.349."""


class NormBaseline(msgspec.Struct, frozen=True, array_like=True):
    """The level of a run's norms, as logarithms.

    Attributes:
        count: Readings so far.
        readings: The last BLOCK_READINGS readings, as float32.
        middle: Median at the last computation of the level.
        spread: Robust deviation at that time. It is that of the later half if that is smaller, because a norm that
            falls fivefold in a run's first steps does not scatter fivefold.
        highs, lows: Extremes of the blocks so far.
        computed_at: Value of `count` at the last computation.
    """

    count: int = 0
    readings: bytes = b""
    middle: float = 0.0
    spread: float = 0.0
    highs: tuple[float, ...] = ()
    lows: tuple[float, ...] = ()
    computed_at: int = 0

    @property
    def known(self) -> bool:
        return self.computed_at > 0

    @property
    def recent(self) -> Floats:
        return np.frombuffer(self.readings, np.float32)[-RECENT_READINGS:]

    def with_high(self, high: float) -> NormBaseline:
        """Adds a single far reading to the extremes of the run."""
        return replace(self, highs=(*self.highs, high)[-MAX_BLOCKS:])

    def readings_left(self) -> int:
        """Returns the number of readings until the level is recomputed."""
        return BLOCK_READINGS - self.count % BLOCK_READINGS

    def with_readings(self, more: Floats) -> NormBaseline:
        """Adds readings, at most readings_left() of them."""
        readings = (self.readings + more.tobytes())[-4 * BLOCK_READINGS :]
        after = replace(self, count=self.count + len(more), readings=readings)
        return after if after.count % BLOCK_READINGS else after.recomputed()

    def before_record(self, more: Floats, ratio: float) -> int:
        """Returns the number of leading readings that are less than `ratio` times all earlier ones of the block.

        The first EARLY_READINGS of the run always are.
        """
        before = np.frombuffer(self.readings, np.float32)
        peaks = np.maximum.accumulate(np.concatenate([before, more]))
        candidates = np.arange(max(EARLY_READINGS, len(before)), len(peaks))
        far = candidates[peaks[candidates] > peaks[candidates - 1] + np.log(ratio)]
        return int(far[0]) - len(before) if far.size else len(more)

    def recomputed(self) -> NormBaseline:
        """Returns the baseline with the level of its present readings."""
        readings = np.frombuffer(self.readings, np.float32)
        ordered, latest = np.sort(readings), np.sort(readings[len(readings) // 2 :])
        return replace(
            self,
            computed_at=self.count,
            middle=float(ordered[len(ordered) // 2]),
            spread=min(_between_quartiles(ordered), _between_quartiles(latest)) / QUARTILE_DISTANCE,
            highs=(*self.highs, float(ordered[-1]))[-MAX_BLOCKS:],
            lows=(*self.lows, float(ordered[0]))[-MAX_BLOCKS:],
        )


def _between_quartiles(ordered: Floats) -> float:
    quarter = len(ordered) // 4
    return float(ordered[-1 - quarter] - ordered[quarter])
