"""Values that run.log sets after the row of their step was written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ammeter.wire import frames
from ammeter_server.curves.curve import Curve
from ammeter_server.db import Row

LOGGED_COLUMNS = ("loss", "val_loss", "samples")
"""Columns of every stream that run.log can set, beside the program's own names."""


def late_curves(rows: Sequence[Row[Any]], names: Sequence[str]) -> dict[str, Curve]:
    """Returns the values of these names in `values.logged` events, at their steps."""
    curves = {}
    for name in names if rows else ():
        measurements = [(row.step, row.time, row.data[name]) for row in rows if _is_number(row.data.get(name))]
        if measurements and may_be_logged(name):
            steps, times = (np.array(column, np.int64) for column in list(zip(*measurements, strict=True))[:2])
            curves[name] = last_values(Curve(steps, times, np.array([value for *_, value in measurements], np.float32)))
    return curves


def may_be_logged(name: str) -> bool:
    return name in LOGGED_COLUMNS or (":" not in name and name not in frames.SCALARS)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def last_values(*curves: Curve) -> Curve:
    """Joins curves, in ascending steps. The last of several values of a step counts."""
    steps, times, values = (np.concatenate(column) for column in list(zip(*curves, strict=True))[:3])
    last = len(steps) - 1 - np.unique(steps[::-1], return_index=True)[1]
    return Curve(steps[last], times[last], values[last])
