"""The limit of the float16 format, and the grid of its small numbers, in gradients."""

from __future__ import annotations

import numpy as np

from ammeter.wire.columns import Ints, Mask, View, measured

FLOAT16_MAX = 65504.0
"""Largest finite float16 (IEEE 754 binary16); larger values become Inf."""

ON_GRID = 0.9
"""Share of small elements that are multiples of 2^-24. Hardly any float32 number below 2^-3 is such a multiple by
chance: a mantissa of 24 bits has 4 bits below 2^-24 at 2^-4, and 8 at 2^-8."""


def on_grid(rows: View, sampled: Ints) -> Mask:
    """Returns bool[tensors, len(sampled)]: whether a tensor's gradient was on the grid in a row."""
    return rows.stat("grad.fp16_grid")[:, sampled] > ON_GRID


def is_half(rows: View, at: int) -> bool | None:
    """Whether most elements of one row's gradients are on the grid.

    Returns None if no tensor has a reading.
    """
    grid = rows.stat("grad.fp16_grid")[:, at]
    known = measured(grid)
    elements = int(rows.numel[known].sum())
    return None if elements == 0 else 2 * int(rows.numel[grid > ON_GRID].sum()) >= elements


def sampled_rows(rows: View) -> Ints:
    """Returns the indices of the rows with a complete reading of the gradients."""
    return np.flatnonzero(measured(rows.scalar("grad_absmax")))
