"""Calls in an order, and set-ups, that break training quietly; each kind is told once, with the line that made it."""

from __future__ import annotations

from ammeter.probes.call_order.clipping import (
    CLIP_TELLS_NORM,
    about_to_change,
    clip_arguments,
    clip_function,
    sorting_function,
)
from ammeter.probes.call_order.probe import Usage

__all__ = ["CLIP_TELLS_NORM", "Usage", "about_to_change", "clip_arguments", "clip_function", "sorting_function"]
