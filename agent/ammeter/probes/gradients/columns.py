"""Stores a reading of gradients in the columns of a row, divided by the loss scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ammeter.tensors import ABSMAX, COLUMNS, GRID, INFS, NANS, NORM, SMALL, SUBNORMALS, ZEROS

if TYPE_CHECKING:
    from ammeter.probes.gradients.reading import GradientReading, Indices
    from ammeter.recording.row import Row

FLOAT32_MAX = float(np.finfo(np.float32).max)


def fill(row: Row, reading: GradientReading) -> npt.NDArray[np.float64]:
    """Stores a reading in the row, divided by the scale.

    Returns:
        The norms as stored, rounded to float32.
    """
    scale = reading.scale.number()
    norms = reading.values.array().astype(np.float64)
    if reading.is_full:
        statistics = norms.reshape(-1, COLUMNS)
        _fill_statistics(row, reading.indices, statistics, scale)
        norms = statistics[:, NORM]
        _fill_nonfinite(row, reading.indices, statistics)
    elif reading.counted is not None:
        _fill_nonfinite(row, *reading.counted)
    row.fill("grad.norm", reading.indices, norms / scale if scale else norms * np.inf)
    return row.stats["grad.norm"][-1][1].astype(np.float64)


def _fill_statistics(row: Row, indices: Indices, statistics: npt.NDArray[np.float64], scale: float) -> None:
    absmax = statistics[:, ABSMAX] / np.float64(scale)
    row.fill("grad.absmax", indices, absmax)
    row.fill("grad.zeros", indices, statistics[:, ZEROS])
    row.fill("grad.subnormals", indices, statistics[:, SUBNORMALS])
    small = statistics[:, SMALL] > 0
    row.fill("grad.fp16_grid", indices[small], statistics[small, GRID] / statistics[small, SMALL])
    row.scalars["grad_absmax"] = max(row.scalars.get("grad_absmax", 0.0), min(float(absmax.max()), FLOAT32_MAX))


def _fill_nonfinite(row: Row, indices: Indices, statistics: npt.NDArray[np.float64]) -> None:
    """Counts NaN and Inf elements: their sum, and per gradient where there are any."""
    counts = statistics[:, NANS] + statistics[:, INFS]
    row.scalars["grad_nonfinite"] = row.scalars.get("grad_nonfinite", 0.0) + float(counts.sum())
    bad = counts > 0
    if bad.any():
        row.fill("grad.nans", indices[bad], statistics[bad, NANS])
        row.fill("grad.infs", indices[bad], statistics[bad, INFS])
