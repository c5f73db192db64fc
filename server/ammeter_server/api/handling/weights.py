"""Whether the weights of a run survived a fault, from what was recorded of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ammeter_server.curves import reader
from ammeter_server.curves.curve import Curve, CurveQuery
from ammeter_server.db import Row, Store

POISONED = "nonfinite-weights"
"""The verdict that finds NaN or Inf in weights or in the optimizer's state."""

DAMAGING = frozenset({"diverged", "ranks-disagree"})
"""Verdicts about weights that the fault has led astray, though they are finite."""

MAX_STEPS = 20_000
"""Steps of a fault that are checked one by one, some milliseconds of reading."""

COLUMNS = ("loss", "grad_norm", "applied", "weights_nonfinite")


@dataclass(frozen=True)
class Weights:
    """What is known of the weights.

    Attributes:
        state: `poisoned`: NaN or Inf were read in weights or optimizer state. `safe`: since the fault began, every
            applied step had a finite loss and finite gradients. `finite`: the last reading, of all weights or a part,
            was finite. `damaged`: they are finite, but the fault led them astray. `unknown`:
            nothing was read since the fault began.
        step: The step of the attempt of the last finding or reading.
    """

    state: Literal["poisoned", "safe", "finite", "damaged", "unknown"]
    step: int | None = None


def poisoned(incident: Row[Any], findings: Iterable[Row[Any]]) -> Weights | None:
    """Returns the weights' state if they are known to be bad; else None.

    Args:
        findings: The findings of the run.
    """
    if incident.verdict == POISONED:
        return Weights("poisoned", incident.last_step)
    for consequence in incident.consequences:
        if consequence["verdict"] == POISONED:
            return Weights("poisoned", consequence.get("opened_step"))
    bad = [row for row in findings if row.verdict == POISONED and row.active and row.stream == incident.stream]
    return Weights("poisoned", bad[0].body.get("opened_step")) if bad else None


def read(store: Store, incident: Row[Any], stream: str) -> Weights:
    """Reads the steps since the fault began and returns what they say of the weights."""
    query = CurveQuery(COLUMNS, 4 * MAX_STEPS, incident.first_step)
    curves = reader.read(store, incident.run, stream, query)
    if _is_safe(curves):
        is_damaged = incident.verdict in DAMAGING
        return Weights("damaged" if is_damaged else "safe", int(curves["applied"].steps[-1]))
    readings = curves.get("weights_nonfinite")
    if readings is None or not len(readings.values):
        return Weights("unknown")
    return Weights(_state(incident, readings.values[-1]), int(readings.steps[-1]))


def _state(incident: Row[Any], nonfinite: float) -> Literal["finite", "damaged", "poisoned"]:
    if nonfinite != 0:
        return "poisoned"
    return "damaged" if incident.verdict in DAMAGING else "finite"


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
