"""The float16 format as gradients show it: its limit, and the grid that its small numbers lie on."""

from __future__ import annotations

import numpy as np

from ammeter.wire.columns import Ints, Mask, View, measured

FLOAT16_MAX = 65504.0
"""Largest finite float16 (IEEE 754 binary16); what is above becomes Inf."""

ON_GRID = 0.9
"""Share of small elements that are multiples of 2^-24. Of float32 numbers below 2^-3 hardly any is by chance: a
mantissa of 24 bits at 2^-4 has 4 bits below 2^-24, at 2^-8 it has 8."""


def on_grid(rows: View, sampled: Ints) -> Mask:
    """bool[tensors, len(sampled)]: the tensor's gradient was seen to be on the grid in that row."""
    return rows.stat("grad.fp16_grid")[:, sampled] > ON_GRID


def is_half(rows: View, at: int) -> bool | None:
    """Whether most elements of one row's gradients are on the grid; None where no tensor could be asked."""
    grid = rows.stat("grad.fp16_grid")[:, at]
    known = measured(grid)
    asked = int(rows.numel[known].sum())
    return None if asked == 0 else 2 * int(rows.numel[grid > ON_GRID].sum()) >= asked


def sampled_rows(rows: View) -> Ints:
    """Indices of the rows whose gradients were read in full."""
    return np.flatnonzero(measured(rows.scalar("grad_absmax")))
