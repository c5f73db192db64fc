"""Whether the weights of a run survived a fault, from what was recorded of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ammeter.verdicts.urgency import URGENCY
from ammeter_server.curves import reader
from ammeter_server.curves.curve import Curve, CurveQuery
from ammeter_server.db import Row, Store
from ammeter_server.incidents.next_action import WeightsState

POISONED = "nonfinite-weights"
"""The verdict that finds NaN or Inf in weights or in the optimizer's state."""

RECOVERED = "recovered"
"""The reason of an incident that was closed because its verdict no longer holds."""

BUFFERS = "poisoned-buffers"
"""The verdict that finds NaN or Inf in buffers of the model, which it uses in evaluation."""

DAMAGING = frozenset({"diverged", "ranks-disagree"})
"""Verdicts that measure that the fault has led the weights astray, though they are finite."""

MAX_STEPS = 20_000
"""Steps of a fault that are checked one by one, some milliseconds of reading."""

COLUMNS = ("loss", "grad_norm", "applied", "weights_nonfinite", "scale")


@dataclass(frozen=True)
class Weights:
    """What is known of the weights.

    Attributes:
        state: `poisoned`: NaN or Inf were read in weights or optimizer state. `buffers`: they were read in buffers of
            the model. `damaged`: the weights are finite, but were measured to have been led astray. `doubtful`: they
            are finite, but steps since the fault began changed them wrongly. `safe`: since the fault began, every
            applied step had a finite loss and finite gradients. `finite`: the last reading, of all weights or a part,
            was finite. `unknown`: nothing was read since the fault began.
        step: The step of the attempt of the last finding or reading.
    """

    state: WeightsState
    step: int | None = None


@dataclass(frozen=True)
class Since:
    """What was recorded since a fault began.

    Attributes:
        skipped_in_a_row: Skipped steps up to the last one.
        scale: The latest loss scale; None without one.
    """

    weights: Weights
    skipped_in_a_row: int
    scale: float | None


def poisoned(incident: Row[Any], findings: Iterable[Row[Any]]) -> Weights | None:
    """Returns the weights' state if they are known to be bad; else None.

    Args:
        findings: The findings of the run.
    """
    if incident.closed_reason == RECOVERED:
        return None
    if incident.verdict == POISONED:
        return Weights("poisoned", incident.last_step)
    for consequence in incident.consequences:
        if consequence["verdict"] == POISONED:
            return Weights("poisoned", consequence.get("opened_step"))
    bad = [row for row in findings if row.verdict == POISONED and row.active and row.stream == incident.stream]
    return Weights("poisoned", bad[0].body.get("opened_step")) if bad else None


def read(store: Store, incident: Row[Any], stream: str) -> Since:
    """Reads the steps since the fault began and returns what they say of the weights."""
    query = CurveQuery(COLUMNS, 4 * MAX_STEPS, incident.first_step)
    curves = reader.read(store, incident.run, stream, query)
    scale = curves.get("scale")
    return Since(
        _weights(incident, curves),
        _skipped_in_a_row(curves.get("applied")),
        float(scale.values[-1]) if scale is not None and len(scale.values) else None,
    )


def _weights(incident: Row[Any], curves: Mapping[str, Curve]) -> Weights:
    if incident.verdict == BUFFERS and incident.closed_reason != RECOVERED:
        return Weights("buffers", incident.last_step)
    if _is_safe(curves):
        applied = curves["applied"]
        return Weights(_finite(incident, "safe", bool(applied.values.any())), int(applied.steps[-1]))
    readings = curves.get("weights_nonfinite")
    if readings is None or not len(readings.values):
        return Weights("unknown")
    is_finite = readings.values[-1] == 0
    return Weights(_finite(incident, "finite", True) if is_finite else "poisoned", int(readings.steps[-1]))


def _finite(incident: Row[Any], state: WeightsState, has_applied: bool) -> WeightsState:
    """Returns the state of finite weights: that one, or that the fault led them astray."""
    if incident.verdict in DAMAGING:
        return "damaged"
    urgency = URGENCY.get(incident.verdict)
    return "doubtful" if urgency is not None and urgency.leads_astray and has_applied else state


def _skipped_in_a_row(applied: Curve | None) -> int:
    if applied is None or not applied.complete:
        return 0
    made = np.flatnonzero(applied.values > 0)
    return len(applied.values) - (int(made[-1]) + 1 if len(made) else 0)


def _is_safe(curves: Mapping[str, Curve]) -> bool:
    """Whether each applied step had a finite loss and a finite gradient norm, both measured."""
    if any(name not in curves for name in ("loss", "grad_norm", "applied")):
        return False
    applied = curves["applied"]
    if not applied.complete or len(applied.steps) > MAX_STEPS:
        return False
    steps = applied.steps[applied.values > 0]
    for name in ("loss", "grad_norm"):
        curve = curves[name]
        finite = curve.steps[np.isfinite(curve.values)]
        if not curve.complete or not np.isin(steps, finite).all():
            return False
    weights = curves.get("weights_nonfinite")
    return weights is None or not (weights.values > 0).any()
