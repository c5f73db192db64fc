"""Detects a hand-written clip: the scaled norm is constant while its parts change."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from ammeter.wire.columns import Mask, View

MAX_CHANGE = 1e-3
"""Relative change between two steps below which the norm is constant. A clip leaves 1e-6; an unlimited norm changes by
percents from batch to batch."""

MIN_PART_RATIO = 1.05
"""Minimum ratio of the largest to the smallest norm of one tensor. It is the tensor with the largest norm, over the
same steps. Pure repetition, such as a full batch at a small learning rate, leaves the parts constant too."""

MIN_STEPS = 20
"""Number of steps with that signature that proves a clip."""

Doubles = npt.NDArray[np.float64]


class ConstantNorm(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive steps with a constant scaled norm.

    Attributes:
        low, high: Range of that norm.
        tensor: The tensor that had the largest norm.
        part_low, part_high: Range of that tensor's norm.
    """

    steps: int = 0
    first: int = -1
    last: float = math.nan
    low: float = 0.0
    high: float = 0.0
    tensor: int = -1
    part_low: float = 0.0
    part_high: float = 0.0

    @property
    def complete(self) -> bool:
        return (
            self.steps >= MIN_STEPS
            and self.high <= self.low * (1 + MAX_CHANGE)
            and self.part_high > self.part_low * MIN_PART_RATIO
        )


class Norms(NamedTuple):
    """Gradient norms of rows in float64.

    Attributes:
        unscaled: The norms as they were read.
        scales: The loss scales.
        scaled: The norms times the scales.
        known: Whether the step was applied and its scaled norm is finite.
    """

    rows: View
    unscaled: Doubles
    scales: Doubles
    scaled: Doubles
    known: Mask


def norms_of(rows: View) -> Norms:
    unscaled, scales = rows.scalar("grad_norm").astype(np.float64), rows.scalar("scale").astype(np.float64)
    scaled = unscaled * scales
    return Norms(rows, unscaled, scales, scaled, np.isfinite(scaled) & (rows.scalar("applied") > 0))


def follow(
    constant: ConstantNorm, norms: Norms, is_harmful: Callable[[float, float], bool]
) -> tuple[ConstantNorm, int | None]:
    """Processes rows until the signature is complete.

    Args:
        constant: The state so far.
        norms: Those of the next rows.
        is_harmful: Whether such a scaled norm does harm at such a scale. Harmless steps are followed but not reported.

    Returns:
        The state, and the index of the row that completes the signature, or None. Later rows are not read.
    """
    rows, scaled = norms.rows, norms.scaled
    if "grad.norm" not in rows.schema.stats:
        return constant, None
    valid = np.flatnonzero(norms.known & (scaled > 0))
    if not valid.size:
        return constant, None
    start = _last_change(constant, scaled[valid]) if valid.size > 1 else 0
    constant = ConstantNorm() if start else constant
    for at in valid[start:].tolist():
        constant = _next(constant, rows, at, float(scaled[at]))
        if constant.complete and is_harmful(constant.high, float(norms.scales[at])):
            return constant, at
    return constant, None


def _last_change(constant: ConstantNorm, norms: Doubles) -> int:
    """Returns the index of the last norm that differs from the one before it.

    Reading may start there. Returns 0 if an earlier stretch is long enough to matter.
    """
    before = np.concatenate(([constant.last], norms[:-1]))
    changes = np.flatnonzero(~(np.abs(norms - before) <= MAX_CHANGE * before))
    if not changes.size:
        return 0
    stretches = np.diff(changes, prepend=-constant.steps)
    return int(changes[-1]) if stretches.max() < MIN_STEPS else 0


def _next(constant: ConstantNorm, rows: View, at: int, norm: float) -> ConstantNorm:
    if not abs(norm - constant.last) <= MAX_CHANGE * constant.last:
        tensor = largest_part(rows, at)
        part = part_norm(rows, tensor, at)
        return ConstantNorm(1, int(rows.steps[at]), norm, norm, norm, tensor, part, part)
    part = part_norm(rows, constant.tensor, at)
    return ConstantNorm(
        constant.steps + 1,
        constant.first,
        norm,
        min(constant.low, norm),
        max(constant.high, norm),
        constant.tensor,
        min(constant.part_low, part) if part > 0 else constant.part_low,
        max(constant.part_high, part),
    )


def largest_part(rows: View, at: int) -> int:
    """Returns the tensor with the largest finite norm in a row."""
    parts = rows.stat("grad.norm")[:, at]
    tensor = int(parts.argmax())  # of a NaN, if there is one
    return tensor if math.isfinite(parts[tensor]) else int(np.argmax(np.where(np.isfinite(parts), parts, -1.0)))


def part_norm(rows: View, tensor: int, at: int) -> float:
    """Returns the scaled norm of one tensor's gradient, 0 if it was not measured."""
    part = float(rows.stat("grad.norm")[tensor, at]) * float(rows.scalar("scale")[at])
    return part if math.isfinite(part) else 0.0
