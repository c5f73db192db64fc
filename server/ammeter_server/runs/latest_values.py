"""The latest value of each scalar of a stream.

Pure. The result does not depend on the division of the stream into batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ammeter.counters.events import MAX_NAME_CHARS
from ammeter.wire.columns import Floats, View, measured
from ammeter.wire.frames import Event

MEASURED_AT = ("loss_step", "grad_norm_step")
"""Names of the latest values that are steps of their stream."""

MAX_NAMES = 1_000
"""Cap on scalars, whose names come from outside and are written with every batch."""


def latest(before: Mapping[str, Any], view: View) -> dict[str, Any]:
    """Returns scalar name -> last measured value, as a number; NaN and Inf stay.

    Adds grad_underflow, from the tensors: the share of gradient elements that are zero or subnormal in float16. Adds
    loss_step and grad_norm_step: the steps at which those were last measured.
    """
    values = _logged_late(view)
    if len(view):
        values = _underflow(view) | _last_measured(view) | values
    return _updated(before, values)


def _last_measured(view: View) -> dict[str, float]:
    names, is_measured = view.schema.scalars, view.is_measured
    scalars = view.values[: len(names)]
    if is_measured[:, -1].all():
        return dict(zip(names, scalars[:, -1].tolist(), strict=True)) | _measured_at(view)
    last = len(view) - 1 - is_measured[:, ::-1].argmax(axis=1)
    columns = np.flatnonzero(is_measured.any(axis=1))
    values = scalars[columns, last[columns]].tolist()
    measured_values = {names[column]: value for column, value in zip(columns.tolist(), values, strict=True)}
    return measured_values | _measured_at(view)


def _measured_at(view: View) -> dict[str, float]:
    """Returns the last steps with a loss (of any of several) and with a norm."""
    columns = zip(MEASURED_AT, (view.loss(), view.scalar("grad_norm")), strict=True)
    rows = {name: np.flatnonzero(measured(column)) for name, column in columns}
    return {name: float(view.steps[at[-1]]) for name, at in rows.items() if at.size}


def _updated(before: Mapping[str, Any], values: Mapping[str, float]) -> dict[str, Any]:
    """Updates the values with new ones; adds names only up to the caps."""
    if values.keys() <= before.keys():
        return {**before, **values}
    after = dict(before)
    for name, value in values.items():
        if name in after or (len(after) < MAX_NAMES and len(name) <= MAX_NAME_CHARS):
            after[name] = value
    return after


def _logged_late(view: View) -> dict[str, float]:
    """Returns values of run.log for steps whose rows were already written."""
    logged: dict[str, float] = {}
    for _, frame in view.frames:
        if isinstance(frame, Event) and frame.name == "values.logged":
            numbers = {name: value for name, value in frame.data.items() if isinstance(value, int | float)}
            logged |= {name: value for name, value in numbers.items() if not _measured_later(view, name, frame.step)}
    return logged


def _measured_later(view: View, name: str, step: int) -> bool:
    """Whether the rows have that scalar at a later step."""
    return bool(len(view) and measured(view.scalar(name)[view.steps > step]).any())


def _underflow(view: View) -> dict[str, float]:
    """Share of underflow over all tensors of the last step with samples; else empty."""
    if "grad.zeros" not in view.schema.stats or "grad.subnormals" not in view.schema.stats:
        return {}
    zeros, subnormals = view.stat("grad.zeros"), view.stat("grad.subnormals")
    lost = _sum(zeros[:, -1], subnormals[:, -1])
    tensors = np.isfinite(lost)
    if not tensors.any():  # the last row has no samples
        in_rows = _sum(zeros, subnormals)
        where = np.flatnonzero(np.isfinite(in_rows).any(axis=0))
        if not len(where):
            return {}
        lost = in_rows[:, where[-1]]
        tensors = np.isfinite(lost)
    elements = int(view.numel[tensors].sum())
    share = float(lost[tensors].sum(dtype=np.float64)) / max(elements, 1)
    return {"grad_underflow": share} if elements and 0 <= share <= 1 else {}


def _sum(zeros: Floats, subnormals: Floats) -> Floats:
    """Returns the elements that are zero or subnormal; NaN without a sample."""
    with np.errstate(over="ignore", invalid="ignore"):
        lost: Floats = zeros + subnormals
    return lost
