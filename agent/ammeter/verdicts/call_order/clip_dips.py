"""Detects a hand-written clip in some steps only: their scaled norms are equal, and far below those of the others.

A single one shows it if its scaled norm is a round number, as limits are.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from ammeter.verdicts.call_order.clip_signature import Norms, largest_part, part_norm
from ammeter.wire.columns import View

MIN_USUAL_STEPS = 16
"""Number of other steps whose norm must be known."""

MAX_USUAL_STEPS = 256
"""Number of other steps that make the usual norm. Later ones need no more than a comparison."""

MIN_DIP_RATIO = 16.0
"""Minimum ratio of the usual norm, a geometric mean, to that of a dip. A clip of scaled gradients divides the norm by
nearly the scale; from one step to the next it otherwise varies by less than this."""

LOG_DIP_RATIO = math.log(MIN_DIP_RATIO)

MAX_DIFFERENCE = 1e-5
"""Relative difference up to which two norms are equal. A clip leaves 1e-6."""

MIN_PART_CHANGE = 50 * MAX_DIFFERENCE
"""Relative change of the largest tensor's norm over these steps. A batch that recurs while the weights stand still
leaves the parts as equal as the whole; after a clip the whole is by far the steadier."""

MIN_DIPS = 3
"""Dips in a row with equal norms that prove a clip."""


MIN_ROUND_DIP_RATIO = 64.0
"""MIN_DIP_RATIO for a single dip whose scaled norm is a round number. One in 10,000 other norms is as near to one."""

ROUND_DIGITS = (1.0, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)

MAX_DIPS = 64
"""Dips in a row with different norms after which they are the usual ones."""

Doubles = npt.NDArray[np.float64]


class Dips(msgspec.Struct, frozen=True, array_like=True):
    """The last dips with equal norms.

    Attributes:
        total: Sum of the logarithms of the first other norms.
        steps: Number of these, at most MAX_USUAL_STEPS.
        unequal: Dips in a row, without another norm or two equal ones between.
        count: Dips in a row with equal scaled norms.
        norm: That norm.
        tensor: The tensor that had the largest norm in the first of them.
        part_low, part_high: Range of that tensor's norm.
    """

    total: float = 0.0
    steps: int = 0
    unequal: int = 0
    count: int = 0
    first: int = -1
    norm: float = 0.0
    tensor: int = -1
    part_low: float = 0.0
    part_high: float = 0.0

    @property
    def usual(self) -> float:
        """The geometric mean of the other norms."""
        return math.exp(self.total / max(1, self.steps))

    @property
    def complete(self) -> bool:
        return self.count >= MIN_DIPS and self.part_high > self.part_low * (1 + MIN_PART_CHANGE)


def follow_dips(dips: Dips, norms: Norms, is_harmful: Callable[[float, float], bool]) -> tuple[Dips, int | None]:
    """Processes rows until dips prove a clip.

    Args:
        dips: The state so far.
        norms: Those of the next rows.
        is_harmful: Whether such a scaled norm does harm at such a scale.

    Returns:
        The state, and the index of the row that proves the clip, or None. Later rows are not read.
    """
    if dips.steps >= MAX_USUAL_STEPS and not dips.unequal and not _may_dip(dips, norms.rows):
        return dips, None
    known = np.flatnonzero(norms.known & (norms.unscaled > 0))
    logs, index = np.log(norms.unscaled[known]), 0
    while index < known.size:
        dips, usual = _usual(dips, logs[index:])
        index += usual
        while index < known.size and _is_dip(dips, float(logs[index])):
            at, index = int(known[index]), index + 1
            dips = _dip(dips, norms.rows, at, float(norms.scaled[at]))
            is_proof = dips.complete or is_round_dip(dips, float(norms.unscaled[at]))
            if is_proof and is_harmful(dips.norm, float(norms.scales[at])):
                return dips, at
    return dips, None


def is_round_dip(dips: Dips, unscaled: float) -> bool:
    """Whether a dip with this unscaled norm is the first of its kind, and its scaled norm is a round number."""
    if dips.count != 1 or unscaled * MIN_ROUND_DIP_RATIO > dips.usual or not dips.norm > 0:
        return False
    digits = dips.norm / 10.0 ** math.floor(math.log10(dips.norm))
    return any(abs(digits - limit) <= MAX_DIFFERENCE * limit for limit in ROUND_DIGITS)


def _may_dip(dips: Dips, rows: View) -> bool:
    """Whether a row may be a dip. The ratio is below MIN_DIP_RATIO, so that rounding to float32 hides none."""
    return bool((rows.scalar("grad_norm") < dips.usual / (0.9 * MIN_DIP_RATIO)).any())


def _usual(dips: Dips, logs: Doubles) -> tuple[Dips, int]:
    """Adds the norms before the first dip; returns their number, too."""
    if logs.size == 1:
        return _usual_step(dips, float(logs[0]))
    steps = np.minimum(dips.steps + np.arange(logs.size + 1), MAX_USUAL_STEPS)
    totals = np.cumsum(np.append(dips.total, np.where(steps[:-1] < MAX_USUAL_STEPS, logs, 0.0)))
    lower = np.flatnonzero((logs + LOG_DIP_RATIO) * steps[:-1] < totals[:-1])
    count = int(lower[0]) if lower.size else logs.size
    if not count:
        return dips, 0
    return replace(dips, total=float(totals[count]), steps=int(steps[count]), unequal=0), count


def _usual_step(dips: Dips, log: float) -> tuple[Dips, int]:
    """Gives the result of _usual() for a single norm with Python's numbers, which take a fraction of the time."""
    if _is_dip(dips, log):
        return dips, 0
    if dips.steps < MAX_USUAL_STEPS:
        return replace(dips, total=dips.total + log, steps=dips.steps + 1, unequal=0), 1
    return replace(dips, unequal=0) if dips.unequal else dips, 1


def _is_dip(dips: Dips, log: float) -> bool:
    return (log + LOG_DIP_RATIO) * dips.steps < dips.total


def _dip(dips: Dips, rows: View, at: int, norm: float) -> Dips:
    if dips.unequal >= MAX_DIPS:
        return Dips()
    if dips.steps < MIN_USUAL_STEPS or "grad.norm" not in rows.schema.stats:
        return replace(dips, unequal=dips.unequal + 1)
    if not abs(norm - dips.norm) <= MAX_DIFFERENCE * dips.norm:
        tensor = largest_part(rows, at)
        part = part_norm(rows, tensor, at)
        return Dips(dips.total, dips.steps, dips.unequal + 1, 1, int(rows.steps[at]), norm, tensor, part, part)
    part = part_norm(rows, dips.tensor, at)
    low = min(dips.part_low, part) if part > 0 else dips.part_low
    return replace(dips, unequal=0, count=dips.count + 1, part_low=low, part_high=max(dips.part_high, part))
