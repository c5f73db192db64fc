"""Measures the distance of the gradients from float16's limit.

It separates an overflow of the loss scale from a broken gradient. The load is the scale times the largest |gradient|.
Applied steps show which loads are tolerated; steps that overflowed at a newly raised scale show which are not.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from ammeter.verdicts.framework.float16 import FLOAT16_MAX
from ammeter.wire.columns import View, measured

WINDOW_STEPS = 100
"""Steps per window of norms: the last 100 to 200 steps count."""

MAX_SHARE_OF_NORM = 1 / 8
"""Largest |gradient| over the norm if no absmax was read. The largest of n equal parts is 1/sqrt(n) of the norm; 64
elements would have to make up all of it for the largest to reach 1/8."""

LIMITED_NORMS = 3
LIMIT_TOLERANCE = 1e-4
"""Norms equal to the largest one, within this relative tolerance, that show a limit: the program clips its gradients
before they are read, so their norms do not show how close backward() came to float16's limit."""


Pair: TypeAlias = tuple[float, float]


class Headroom(msgspec.Struct, frozen=True, array_like=True):
    """The loads that a run has tolerated.

    Attributes:
        norm: Largest norm of this window.
        norm_before: Largest norm of the previous window.
        reach: Largest |gradient| over the norm.
    """

    applied_scale: float = 0.0
    """Scale of the last applied step, 0 before there is one."""
    window: int = -1
    norm: float = 0.0
    norm_before: float = 0.0
    reach: float = MAX_SHARE_OF_NORM
    capacity: float = FLOAT16_MAX
    """Load at which gradients overflow, as far as it is known."""
    overflowed: float = 0.0
    """Scale that was too high before any load was known."""
    optimizers: int = 0
    """Largest number of optimizers that were applied in one step."""
    loss: float = 0.0
    loss_before: float = 0.0
    """Largest |loss| of the steps of `norm` and `norm_before`."""
    top: float = 0.0
    """The largest norm of all while repeated norms are counted."""
    repeats: int = 0
    """Number of norms that have repeated it, at most LIMITED_NORMS."""

    @property
    def is_limited(self) -> bool:
        """Whether the program limits the norm of its gradients before they are read."""
        return self.repeats >= LIMITED_NORMS

    def load_at(self, scale: float) -> float:
        """Returns the load of a usual recent step at this scale; 0 if unknown."""
        return scale * max(self.norm, self.norm_before) * self.reach

    def bits(self, scale: float) -> float:
        """Returns the doublings of that load before gradients overflow; -1 if no load is known."""
        load = self.load_at(scale)
        return math.log2(self.capacity / load) if load > 0 else -1.0

    def rise(self, loss: float) -> float:
        """Returns the doublings from the loss of these steps to a larger one, whose gradients are larger, too."""
        level = max(self.loss, self.loss_before)
        return max(0.0, math.log2(abs(loss) / level)) if level > 0 and 0 < abs(loss) < math.inf else 0.0


def overflow(headroom: Headroom, scale: float) -> Headroom:
    """Stores that a scale that had not worked before is too high."""
    known = headroom.load_at(scale)
    if known:
        return replace(headroom, capacity=min(headroom.capacity, known))
    return replace(headroom, overflowed=min(headroom.overflowed or scale, scale))


def covers(headroom: Headroom, scale: float, optimizers: int) -> bool:
    """Whether steps of so many optimizers were applied at this scale, so that it has worked for each of them."""
    return 0 < scale <= headroom.applied_scale and optimizers <= max(1, headroom.optimizers)


def with_optimizers(headroom: Headroom, optimizers: float) -> Headroom:
    """Stores the number of optimizers that were applied in a step."""
    return replace(headroom, optimizers=int(optimizers)) if optimizers > headroom.optimizers else headroom


def applied(headroom: Headroom, step: int, scale: float, norm: float, absmax: float, loss: float) -> Headroom:
    """Stores an applied step. `norm` and `absmax` are unscaled; NaN if not measured."""
    if scale > 0 and scale != headroom.applied_scale:
        headroom = replace(headroom, applied_scale=scale)
    if norm > 0:
        headroom = _windowed(headroom, step // WINDOW_STEPS, (norm, 0.0), (_finite(loss), 0.0))
    if absmax > 0 and norm > 0:
        headroom = replace(headroom, reach=absmax / norm)
    if absmax > 0 and scale > 0:
        headroom = _tolerated(headroom, absmax * scale)
        if headroom.overflowed:
            capacity = min(headroom.capacity, max(headroom.overflowed, scale) * absmax)
            headroom = replace(headroom, capacity=capacity, overflowed=0.0)
    return headroom


def all_applied(headroom: Headroom, rows: View) -> Headroom:
    """Gives the result of applied() for rows that were all applied or have no values.

    No overflow may be waiting for its load.
    """
    if len(rows) == 1:
        (step, (was_applied, *values)) = next(rows.records("applied", "scale", "grad_norm", "grad_absmax"))
        values.append(float(rows.loss()[0]))
        return applied(with_optimizers(headroom, was_applied), step, *values) if was_applied > 0 else headroom
    headroom = with_optimizers(headroom, float(np.nanmax(rows.scalar("applied"), initial=0.0)))
    done = rows.scalar("applied") > 0
    some = slice(None) if done.all() else done
    scales, norms, peaks = (
        rows.scalar(name)[some].astype(np.float64) for name in ("scale", "grad_norm", "grad_absmax")
    )
    scaled = scales[scales > 0]
    if scaled.size and scaled[-1] != headroom.applied_scale:
        headroom = replace(headroom, applied_scale=float(scaled[-1]))
    read = np.flatnonzero(norms > 0)
    if read.size:
        steps, norms_read = rows.steps[some][read], norms[read]
        last = int(steps[-1]) // WINDOW_STEPS
        begin, begin_before = np.searchsorted(steps, (last * WINDOW_STEPS, (last - 1) * WINDOW_STEPS)).tolist()
        losses = np.abs(rows.loss()[some][read])
        pairs = [(_highest(values[begin:]), _highest(values[begin_before:begin])) for values in (norms_read, losses)]
        headroom = _windowed(headroom, last, *pairs)
    if not measured(rows.scalar("grad_absmax")).any():
        return headroom
    both = np.flatnonzero((peaks > 0) & (norms > 0))
    if both.size:
        headroom = replace(headroom, reach=float(peaks[both[-1]] / norms[both[-1]]))
    loads = (peaks * scales)[(peaks > 0) & (scales > 0)]
    return _tolerated(headroom, float(loads.max())) if loads.size else headroom


def with_limit(headroom: Headroom, norms: npt.NDArray[Any]) -> Headroom:
    """Counts the norms that repeat the largest one, until a few have shown a limit."""
    norms = norms[np.isfinite(norms)].astype(np.float64)
    if headroom.is_limited or not norms.size:
        return headroom
    tops = np.maximum.accumulate(np.concatenate(([headroom.top], norms)))
    rises = norms > tops[:-1] * (1 + LIMIT_TOLERANCE)
    total = np.cumsum(~rises & (norms >= tops[:-1] * (1 - LIMIT_TOLERANCE)))
    repeats: npt.NDArray[np.int64] = total - np.maximum.accumulate(np.where(rises, total, -headroom.repeats))
    if (repeats >= LIMITED_NORMS).any():
        return replace(headroom, top=0.0, repeats=LIMITED_NORMS)
    return replace(headroom, top=float(tops[-1]), repeats=int(repeats[-1]))


def _windowed(headroom: Headroom, window: int, norm: Pair, loss: Pair) -> Headroom:
    """Updates the windows.

    Args:
        headroom: The state so far.
        window: Number of the window.
        norm: Largest norms of this window and of the previous one among new rows.
        loss: Largest |loss| of them.
    """
    if window == headroom.window:
        norms, losses = max(norm[0], headroom.norm), max(loss[0], headroom.loss)
        is_new = norms > headroom.norm or losses > headroom.loss
        return replace(headroom, norm=norms, loss=losses) if is_new else headroom
    follows = window == headroom.window + 1
    norm_before = max(norm[1], headroom.norm if follows else 0.0)
    loss_before = max(loss[1], headroom.loss if follows else 0.0)
    return replace(
        headroom, window=window, norm=norm[0], norm_before=norm_before, loss=loss[0], loss_before=loss_before
    )


def _finite(loss: float) -> float:
    return abs(loss) if math.isfinite(loss) else 0.0


def _highest(values: npt.NDArray[Any]) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if finite.size else 0.0


def _tolerated(headroom: Headroom, load: float) -> Headroom:
    capacity = min(FLOAT16_MAX, max(headroom.capacity, load))
    return headroom if capacity == headroom.capacity else replace(headroom, capacity=capacity)
