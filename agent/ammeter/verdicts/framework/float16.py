"""The limit of the float16 format, and the grid of its small numbers, in gradients."""

from __future__ import annotations

import re

import numpy as np

from ammeter.wire.columns import Ints, Mask, View, measured

FLOAT16_MAX = 65504.0
"""Largest finite float16 (IEEE 754 binary16); larger values become Inf."""

WRONG_ON = r"\bGTX 16\d\d\b|\bT(?:400|500|550|600|1000|1200|2000)\b"
"""Names of GPUs whose convolutions in float16 return NaN or zeros (ultralytics#17977): the GTX 16 series and the
workstation GPUs with its chips, TU116 and TU117. They have compute capability 7.5, and no tensor cores."""

WRONG_CAPABILITY = "7.5"
"""Their compute capability. Later GPUs have similar names."""

ON_GRID = 0.9
"""Share of small elements that are multiples of 2^-24. Hardly any float32 number below 2^-3 is such a multiple by
chance: a mantissa of 24 bits has 4 bits below 2^-24 at 2^-4, and 8 at 2^-8."""

ON_GRID_OF_RANKS = 0.7
"""Factor on the share that remains after an average over ranks: a sum of multiples, divided by n, is a multiple again
in one of n cases. A share of 0.5 among a hundred elements scatters by 0.05."""

MIN_ON_GRID = 1 / 16
"""Smallest share that is no chance: so many float32 numbers between 2^-4 and 2^-3 are multiples, and fewer of smaller
ones."""


def is_wrong_on(device: str, capability: str) -> bool:
    """Whether a GPU computes wrong numbers in float16."""
    return capability == WRONG_CAPABILITY and re.search(WRONG_ON, device) is not None


def on_grid(rows: View, sampled: Ints, ranks: int = 1) -> Mask:
    """Returns bool[tensors, len(sampled)]: whether a tensor's gradient was on the grid in a row.

    Args:
        ranks: Number of ranks that may have averaged their gradients since.
    """
    share = ON_GRID if ranks == 1 else max(ON_GRID_OF_RANKS / ranks, MIN_ON_GRID)
    return rows.stat("grad.fp16_grid")[:, sampled] > share


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
