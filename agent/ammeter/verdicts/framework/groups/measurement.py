"""Measures each run of two groups at the same steps. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from ammeter.verdicts.framework.run_history import VALIDATION, RunHistory, declared_metrics
from ammeter.wire.columns import Ints
from ammeter.wire.metric_directions import LOWER

LOSS = "loss"

LATE_SHARE = 0.25
"""The training loss is the mean of the last quarter of the common steps, as in `ammeter canary`: that of a single
batch depends on the batch."""

MIN_LOSS_STEPS = 20
"""As in `ammeter canary`: fewer steps show no more than the noise of their batches."""


@dataclass(frozen=True)
class Measurement:
    """One metric of all runs.

    Attributes:
        better: `lower` or `higher`; None if it is not known.
        first_step, last_step: the steps that each value is from; equal for a validation.
        values: one per run, in the order of the runs; not finite where the run's value is not.
    """

    metric: str
    better: str | None
    first_step: int
    last_step: int
    values: tuple[float, ...]


def measure(
    histories: Sequence[RunHistory], metric: str | None = None, better: str | None = None
) -> Measurement | None:
    """Measures the metric, or the first one that all runs have at a common step: validations before the loss.

    Returns None if there is no such step. better: direction of the metric, in place of the one in the tags.
    """
    directions = metrics_of(histories)
    for name in [metric] if metric else [*directions, LOSS]:
        steps = _common_steps(histories, name)
        if name == LOSS and len(steps) >= MIN_LOSS_STEPS:
            return _measured(histories, name, better or LOWER, steps[-max(1, int(len(steps) * LATE_SHARE)) :])
        if name != LOSS and len(steps):
            return _measured(histories, name, better or directions.get(name), steps[-1:])
    return None


def metrics_of(histories: Sequence[RunHistory]) -> Mapping[str, str]:
    """Returns metric -> `lower` or `higher`: the declared metrics of all runs."""
    return VALIDATION | {
        name: better for history in histories for name, better in declared_metrics(history.tags).items()
    }


def _measured(histories: Sequence[RunHistory], name: str, better: str | None, steps: Ints) -> Measurement:
    return Measurement(name, better, int(steps[0]), int(steps[-1]), tuple(_means(histories, name, steps)))


def _means(histories: Sequence[RunHistory], name: str, steps: Ints) -> Iterator[float]:
    for history in histories:
        curve = history.curve(name)
        values = curve.values[np.isin(curve.steps, steps)].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            yield float(np.mean(values))


def _common_steps(histories: Sequence[RunHistory], name: str) -> Ints:
    curves = [history.curve(name).steps for history in histories]
    common: Ints = reduce(lambda one, other: np.intersect1d(one, other, assume_unique=True), curves)
    return common
