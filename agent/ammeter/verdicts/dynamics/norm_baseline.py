"""What a run's gradient norms have been like so far: where they lie, how far they spread, and their extremes.

Everything is in logarithms, in which norms spread alike from both sides: a batch that gives twice the norm is as likely
as one that gives half of it.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

Floats = npt.NDArray[np.float32]

BLOCK = 64
"""The level is that of the last 64 readings, taken anew every 64: long enough for quartiles that stand still, short
enough to follow a warm-up or a decay. Before the first 64 there is none: rare batches have not been seen."""

BLOCKS = 16
"""Blocks whose extremes are remembered, a thousand readings: what a run has done before is no surprise."""

RECENT = 8
"""Readings just before, for telling a jump from a climb."""

QUARTILES = 1.349
"""Between the quartiles of a normal distribution lie 1.349 of its standard deviations."""


class NormBaseline(msgspec.Struct, frozen=True, array_like=True):
    """count: readings so far. readings: the last BLOCK of them, float32. middle, spread: median and robust deviation
    when the level was taken, at `taken` readings; the deviation is that of the later half where it is less, for a norm
    that falls fivefold in a run's first steps does not scatter fivefold. highs, lows: extremes of the blocks so far."""

    count: int = 0
    readings: bytes = b""
    middle: float = 0.0
    spread: float = 0.0
    highs: tuple[float, ...] = ()
    lows: tuple[float, ...] = ()
    taken: int = 0

    @property
    def known(self) -> bool:
        return self.count >= BLOCK

    @property
    def recent(self) -> Floats:
        return np.frombuffer(self.readings, np.float32)[-RECENT:]

    def with_high(self, high: float) -> NormBaseline:
        """A single reading that was far off is part of what the run is like, too."""
        return replace(self, highs=(*self.highs, high)[-BLOCKS:])

    def room(self) -> int:
        """Readings until it is taken anew."""
        return BLOCK - self.count % BLOCK

    def with_readings(self, more: Floats) -> NormBaseline:
        """After these readings, at most room() of them."""
        readings = (self.readings + more.tobytes())[-4 * BLOCK :]
        after = replace(self, count=self.count + len(more), readings=readings)
        return after if after.count % BLOCK else after._anew()

    def _anew(self) -> NormBaseline:
        readings = np.frombuffer(self.readings, np.float32)
        ordered, latest = np.sort(readings), np.sort(readings[len(readings) // 2 :])
        return replace(
            self,
            taken=self.count,
            middle=float(ordered[len(ordered) // 2]),
            spread=min(_between_quartiles(ordered), _between_quartiles(latest)) / QUARTILES,
            highs=(*self.highs, float(ordered[-1]))[-BLOCKS:],
            lows=(*self.lows, float(ordered[0]))[-BLOCKS:],
        )


def _between_quartiles(ordered: Floats) -> float:
    quarter = len(ordered) // 4
    return float(ordered[-1 - quarter] - ordered[quarter])
