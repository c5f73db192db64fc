"""Values that run.log sets after the row of their step was written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ammeter.wire.logged_values import is_number, may_be_logged
from ammeter_server.curves.curve import Curve
from ammeter_server.db import Row


def late_curves(rows: Sequence[Row[Any]], names: Sequence[str]) -> dict[str, Curve]:
    """Returns the values of these names in `values.logged` events, at their steps."""
    curves = {}
    for name in names if rows else ():
        measurements = [(row.step, row.time, row.data[name]) for row in rows if is_number(row.data.get(name))]
        if measurements and may_be_logged(name):
            steps, times = (np.array(column, np.int64) for column in list(zip(*measurements, strict=True))[:2])
            curves[name] = last_values(Curve(steps, times, np.array([value for *_, value in measurements], np.float32)))
    return curves


def last_values(*curves: Curve) -> Curve:
    """Joins curves, in ascending steps. The last of several values of a step counts."""
    steps, times, values = (np.concatenate(column) for column in list(zip(*curves, strict=True))[:3])
    last = len(steps) - 1 - np.unique(steps[::-1], return_index=True)[1]
    return Curve(steps[last], times[last], values[last])
