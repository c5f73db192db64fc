"""Definitions of the figures that are counted in rows."""

from __future__ import annotations

import numpy as np

from ammeter.wire.columns import Floats, Mask, View, measured


def positive(column: Floats) -> Mask:
    """True where a value was measured and is above 0."""
    above: Mask = column > 0  # an absent value is a NaN
    return above


def nonfinite_gradients(view: View) -> Mask:
    """True for rows with NaN or Inf in the gradients.

    Elements are counted in some rows only, on CUDA in none; elsewhere a non-finite norm decides. If elements were
    counted and none is non-finite, the norm of finite gradients overflowed.
    """
    norms, elements = view.scalar("grad_norm"), view.scalar("grad_nonfinite")
    counted, finite = positive(elements), np.isfinite(norms)
    if finite.all():
        return counted
    nonfinite: Mask = (measured(norms) & ~finite & ~(elements == 0)) | counted
    return nonfinite


def nonfinite_losses(view: View) -> Mask:
    """True for rows whose loss is NaN or Inf."""
    loss = view.loss()
    nonfinite: Mask = ~np.isfinite(loss)
    return nonfinite & measured(loss) if nonfinite.any() else nonfinite


def count(rows: Mask) -> int:
    return int(np.count_nonzero(rows))


def total(column: Floats) -> float:
    """Sums the finite values above 0."""
    above = positive(column)
    return float(column[above & (column < np.inf)].sum(dtype=np.float64)) if above.any() else 0.0


def figures(view: View) -> tuple[list[int], list[float]]:
    """Returns positive() and total() of each scalar column: rows above 0, and the sum of the finite ones."""
    columns = view.values[: len(view.schema.scalars)]
    above = positive(columns)
    sums = np.where(above & (columns < np.inf), columns, np.float32(0)).sum(axis=1, dtype=np.float64)
    return above.sum(axis=1).tolist(), sums.tolist()
