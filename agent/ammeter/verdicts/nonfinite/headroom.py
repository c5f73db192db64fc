"""Measures the distance of the gradients from float16's limit.

It separates an overflow of the loss scale from a broken gradient. The load is the scale times the largest |gradient|.
Applied steps show which loads are tolerated; steps that overflowed at a newly raised scale show which are not.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework.float16 import FLOAT16_MAX
from ammeter.wire.columns import View, measured

WINDOW = 100
"""Steps per window of norms: the last 100 to 200 steps count."""

REACH = 1 / 8
"""Largest |gradient| over the norm if no absmax was read. The largest of n equal parts is 1/sqrt(n) of the norm; 64
elements would have to make up all of it for the largest to reach 1/8."""


class Headroom(msgspec.Struct, frozen=True, array_like=True):
    """The loads that a run has tolerated.

    Attributes:
        norm: Largest norm of this window.
        norm_before: Largest norm of the previous window.
        reach: Largest |gradient| over the norm.
    """

    worked: float = 0.0
    """Scale of the last applied step, 0 before there is one."""
    window: int = -1
    norm: float = 0.0
    norm_before: float = 0.0
    reach: float = REACH
    capacity: float = FLOAT16_MAX
    """Load at which gradients overflow, as far as it is known."""
    overflowed: float = 0.0
    """Scale that was too high before any load was known."""

    def load_at(self, scale: float) -> float:
        """Returns the load of a usual recent step at this scale; 0 if unknown."""
        return scale * max(self.norm, self.norm_before) * self.reach

    def bits(self, scale: float) -> float:
        """Returns the doublings of that load before gradients overflow; -1 if no load is known."""
        load = self.load_at(scale)
        return math.log2(self.capacity / load) if load > 0 else -1.0


def overflow(room: Headroom, scale: float) -> Headroom:
    """Stores that a scale that had not worked before is too high."""
    known = room.load_at(scale)
    if known:
        return replace(room, capacity=min(room.capacity, known))
    return replace(room, overflowed=min(room.overflowed or scale, scale))


def good(room: Headroom, step: int, scale: float, norm: float, absmax: float) -> Headroom:
    """Stores an applied step. `norm` and `absmax` are unscaled; NaN if not measured."""
    if scale > 0 and scale != room.worked:
        room = replace(room, worked=scale)
    if norm > 0:
        room = _windowed(room, step // WINDOW, norm, 0.0)
    if absmax > 0 and norm > 0:
        room = replace(room, reach=absmax / norm)
    if absmax > 0 and scale > 0:
        room = _borne(room, absmax * scale)
        if room.overflowed:
            capacity = min(room.capacity, max(room.overflowed, scale) * absmax)
            room = replace(room, capacity=capacity, overflowed=0.0)
    return room


def all_good(room: Headroom, rows: View) -> Headroom:
    """Gives the result of good() for rows that were all applied or have no values.

    No overflow may be waiting for its load.
    """
    if len(rows) == 1:
        (step, (applied, *of_the_step)) = next(rows.records("applied", "scale", "grad_norm", "grad_absmax"))
        return good(room, step, *of_the_step) if applied > 0 else room
    done = rows.scalar("applied") > 0
    scales, norms, peaks = (
        rows.scalar(name)[done].astype(np.float64) for name in ("scale", "grad_norm", "grad_absmax")
    )
    scaled = scales[scales > 0]
    if scaled.size and scaled[-1] != room.worked:
        room = replace(room, worked=float(scaled[-1]))
    read = np.flatnonzero(norms > 0)
    if read.size:
        windows = rows.steps[done][read] // WINDOW
        last = int(windows[-1])
        now, earlier = norms[read][windows == last], norms[read][windows == last - 1]
        room = _windowed(room, last, float(now.max()), float(earlier.max()) if earlier.size else 0.0)
    if not measured(rows.scalar("grad_absmax")).any():
        return room
    both = np.flatnonzero((peaks > 0) & (norms > 0))
    if both.size:
        room = replace(room, reach=float(peaks[both[-1]] / norms[both[-1]]))
    loads = (peaks * scales)[(peaks > 0) & (scales > 0)]
    return _borne(room, float(loads.max())) if loads.size else room


def _windowed(room: Headroom, window: int, norm: float, before: float) -> Headroom:
    """Updates the windows.

    Args:
        room: The state so far.
        window: Number of the window.
        norm: Largest norm of this window among new rows.
        before: Largest norm of the previous window among new rows.
    """
    if window == room.window:
        return replace(room, norm=norm) if norm > room.norm else room
    earlier = room.norm if window == room.window + 1 else 0.0
    return replace(room, window=window, norm=norm, norm_before=max(before, earlier))


def _borne(room: Headroom, borne: float) -> Headroom:
    capacity = min(FLOAT16_MAX, max(room.capacity, borne))
    return room if capacity == room.capacity else replace(room, capacity=capacity)
