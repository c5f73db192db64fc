"""How near float16's limit the gradients come: what tells an overflow from a gradient that is broken.

The load is the scale times the largest |gradient|. Steps that were applied show what load is borne; steps that
overflowed while the scale was tried higher show what load is not.
"""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.block import View, measured
from ammeter.verdicts.words import FLOAT16_MAX

WINDOW = 100
"""Norms of the last 100 to 200 steps count."""

REACH = 1 / 8
"""Largest |gradient| over norm where no absmax was read. The largest of n equal parts is 1/sqrt(n) of the norm; 64
elements would have to carry all of it for the largest to reach 1/8."""


class Load(msgspec.Struct, frozen=True, array_like=True):
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

    def at(self, scale: float) -> float:
        """The load that a usual step of late would have at this scale; 0 when none has been seen."""
        return scale * max(self.norm, self.norm_before) * self.reach


def overflow(load: Load, scale: float) -> Load:
    """A scale that had not worked yet turned out too high."""
    known = load.at(scale)
    if known:
        return replace(load, capacity=min(load.capacity, known))
    return replace(load, overflowed=min(load.overflowed or scale, scale))


def good(load: Load, step: int, scale: float, norm: float, absmax: float) -> Load:
    """A step was applied. norm and absmax are unscaled; NaN when not measured."""
    if scale > 0 and scale != load.worked:
        load = replace(load, worked=scale)
    if norm > 0:
        load = _windowed(load, step // WINDOW, norm, 0.0)
    if absmax > 0 and norm > 0:
        load = replace(load, reach=absmax / norm)
    if absmax > 0 and scale > 0:
        load = _borne(load, absmax * scale)
        if load.overflowed:
            capacity = min(load.capacity, max(load.overflowed, scale) * absmax)
            load = replace(load, capacity=capacity, overflowed=0.0)
    return load


def all_good(load: Load, rows: View) -> Load:
    """What good() comes to for rows that were all applied or are silent, where no overflow waits for its load."""
    done = rows.scalar("applied") > 0
    scales, norms, peaks = (
        rows.scalar(name)[done].astype(np.float64) for name in ("scale", "grad_norm", "grad_absmax")
    )
    scaled = scales[scales > 0]
    if scaled.size and scaled[-1] != load.worked:
        load = replace(load, worked=float(scaled[-1]))
    read = np.flatnonzero(norms > 0)
    if read.size:
        windows = rows.steps[done][read] // WINDOW
        last = int(windows[-1])
        now, earlier = norms[read][windows == last], norms[read][windows == last - 1]
        load = _windowed(load, last, float(now.max()), float(earlier.max()) if earlier.size else 0.0)
    if not measured(rows.scalar("grad_absmax")).any():
        return load
    both = np.flatnonzero((peaks > 0) & (norms > 0))
    if both.size:
        load = replace(load, reach=float(peaks[both[-1]] / norms[both[-1]]))
    loads = (peaks * scales)[(peaks > 0) & (scales > 0)]
    return _borne(load, float(loads.max())) if loads.size else load


def _windowed(load: Load, window: int, norm: float, before: float) -> Load:
    """norm: largest of this window among new rows. before: largest of the window before it, among them too."""
    if window == load.window:
        return replace(load, norm=norm) if norm > load.norm else load
    earlier = load.norm if window == load.window + 1 else 0.0
    return replace(load, window=window, norm=norm, norm_before=max(before, earlier))


def _borne(load: Load, borne: float) -> Load:
    capacity = min(FLOAT16_MAX, max(load.capacity, borne))
    return load if capacity == load.capacity else replace(load, capacity=capacity)
