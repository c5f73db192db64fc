"""Definitions of the figures that are counted in rows."""

from __future__ import annotations

import numpy as np

from ammeter.wire.columns import Floats, Mask, View, measured


def positive(column: Floats) -> Mask:
    """True where a value was measured and is above 0."""
    above: Mask = measured(column) & (column > 0)
    return above


def nonfinite_gradients(view: View) -> Mask:
    """True for rows with NaN or Inf in the gradients.

    Elements are counted in some rows only, on CUDA in none; elsewhere a non-finite norm decides. If elements were
    counted and none is non-finite, the norm of finite gradients overflowed.
    """
    norms, elements = view.scalar("grad_norm"), view.scalar("grad_nonfinite")
    nonfinite: Mask = (measured(norms) & ~np.isfinite(norms) & ~(elements == 0)) | (elements > 0)
    return nonfinite


def nonfinite_losses(view: View) -> Mask:
    """True for rows whose loss is NaN or Inf."""
    loss = view.loss()
    nonfinite: Mask = measured(loss) & ~np.isfinite(loss)
    return nonfinite


def count(rows: Mask) -> int:
    return int(np.count_nonzero(rows))


def total(column: Floats) -> float:
    """Sums the finite values above 0."""
    finite = column[np.isfinite(column)]
    return float(finite[finite > 0].sum(dtype=np.float64)) if finite.size else 0.0
