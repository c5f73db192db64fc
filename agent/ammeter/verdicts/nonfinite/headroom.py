"""How near float16's limit the gradients come: what tells an overflow from a gradient that is broken.

The load is the scale times the largest |gradient|. Steps that were applied show what load is borne; steps that
overflowed while the scale was tried higher show what load is not.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework.float16 import FLOAT16_MAX
from ammeter.wire.columns import View, measured

WINDOW = 100
"""Norms of the last 100 to 200 steps count."""

REACH = 1 / 8
"""Largest |gradient| over norm where no absmax was read. The largest of n equal parts is 1/sqrt(n) of the norm; 64
elements would have to carry all of it for the largest to reach 1/8."""


class Headroom(msgspec.Struct, frozen=True, array_like=True):
    """The loads that a run has borne. norm, norm_before: the largest norm of this window and of the one before."""

    worked: float = 0.0
    """Scale of the last applied step, 0 before there is one."""
    window: int = -1
    norm: float = 0.0
    norm_before: float = 0.0
    reach: float = REACH
    capacity: float = FLOAT16_MAX
    """Load at which gradients overflow, as far as is known."""
    overflowed: float = 0.0
    """Scale that was too high, where no load is known yet."""

    def load_at(self, scale: float) -> float:
        """The load that a usual step of late would have at this scale; 0 when none has been seen."""
        return scale * max(self.norm, self.norm_before) * self.reach

    def bits(self, scale: float) -> float:
        """Doublings of that load before gradients overflow; -1 when no load is known."""
        load = self.load_at(scale)
        return math.log2(self.capacity / load) if load > 0 else -1.0


def overflow(room: Headroom, scale: float) -> Headroom:
    """A scale that had not worked yet turned out too high."""
    known = room.load_at(scale)
    if known:
        return replace(room, capacity=min(room.capacity, known))
    return replace(room, overflowed=min(room.overflowed or scale, scale))


def good(room: Headroom, step: int, scale: float, norm: float, absmax: float) -> Headroom:
    """A step was applied. norm and absmax are unscaled; NaN when not measured."""
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
    """What good() comes to for rows that were all applied or are silent, where no overflow waits for its load."""
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
    """norm: largest of this window among new rows. before: largest of the window before it, among them too."""
    if window == room.window:
        return replace(room, norm=norm) if norm > room.norm else room
    earlier = room.norm if window == room.window + 1 else 0.0
    return replace(room, window=window, norm=norm, norm_before=max(before, earlier))


def _borne(room: Headroom, borne: float) -> Headroom:
    capacity = min(FLOAT16_MAX, max(room.capacity, borne))
    return room if capacity == room.capacity else replace(room, capacity=capacity)
