"""Compares two runs: their settings, and their results relative to each other.

The functions are pure. All results refer to the steps that both runs have, so a run can be compared before it ends. A
result that a difference of the settings forbids is None, and exclusion() returns the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ammeter.verdicts.framework.run_history import VALIDATION, RunHistory, declared_metrics
from ammeter.verdicts.framework.run_likeness import (
    PRECISION,
    QUESTIONS,
    SEEDS,
    Difference,
    differences,
    ignored_by,
    last_part,
    median_of,
    settings_of,
)
from ammeter.wire.columns import Floats
from ammeter.wire.metric_directions import HIGHER, LOWER

WARM_UP_STEPS = 64
"""Steps at the start of a run that are excluded from its speed: kernels are compiled and selected there, and Ammeter
reads densely. For a short run it is a third of its steps."""

MIN_STEPS = 20
"""Minimum number of steps after the warm-up for a meaningful median."""

MIN_MEMORY_READINGS = 3
"""Minimum number of memory readings for which their maximum counts as a peak."""

MAX_REASONS = 3
"""Maximum number of differences that a reason lists."""


@dataclass(frozen=True)
class Speed:
    """Median seconds per step over the same steps of both runs.

    Attributes:
        per: `step`, or `sample` if the two runs have different numbers of samples per step.
        first: First step that was compared.
        last: Last step that was compared.
        clear: Whether three quarters of the run's steps are slower than the baseline's median.
    """

    run: float
    baseline: float
    per: str
    first: int
    last: int
    steps: int
    clear: bool

    @property
    def ratio(self) -> float:
        """The run's duration as a multiple of the baseline's."""
        return self.run / self.baseline


@dataclass(frozen=True)
class Memory:
    """Peak memory of the tensors on the device, in bytes."""

    run: float
    baseline: float
    first: int
    last: int

    @property
    def ratio(self) -> float:
        return self.run / self.baseline


@dataclass(frozen=True)
class Validation:
    """A metric at a step that both runs have.

    Attributes:
        better: `lower` or `higher`.
    """

    step: int
    run: float
    baseline: float
    metric: str = "val_loss"
    better: str = LOWER

    @property
    def delta(self) -> float:
        """Relative deterioration against the baseline; infinite if the run's value is not finite."""
        if not math.isfinite(self.run):
            return math.inf
        worse = self.baseline - self.run if self.better == HIGHER else self.run - self.baseline
        return worse / max(abs(self.baseline), 1e-12)


@dataclass(frozen=True)
class RunComparison:
    """A run and its baseline.

    Attributes:
        ignored: Settings that may differ, in addition to those in the run's tag `baseline_ignore`.
        delta: Allowed deterioration, see validation-drift.
    """

    run: RunHistory
    baseline: RunHistory
    ignored: frozenset[str] = frozenset()
    delta: float | None = None

    @cached_property
    def differences(self) -> list[Difference]:
        """Unintended differences in model, data, settings and environment."""
        return differences(self.run, self.baseline, self.ignored | ignored_by(self.run.tags))

    @property
    def forbidding(self) -> list[Difference]:
        """The differences that forbid at least one comparison."""
        return [difference for difference in self.differences if difference.forbids]

    def exclusion(self, question: str) -> str | None:
        """Returns the reason why one of QUESTIONS cannot be compared; None if it can."""
        reasons = [difference.text for difference in self.differences if question in difference.forbids]
        if not reasons:
            return None
        more = f", and {len(reasons) - MAX_REASONS} more" if len(reasons) > MAX_REASONS else ""
        return f"not comparable: {'; '.join(reasons[:MAX_REASONS])}{more}"

    @cached_property
    def seeds(self) -> tuple[Any, Any]:
        """The seeds of both runs; None for a config without a seed."""
        mine, theirs = (
            next((value for key, value in settings_of(history) if last_part(key) in SEEDS), None)
            for history in (self.run, self.baseline)
        )
        return mine, theirs

    @property
    def metrics(self) -> Mapping[str, str]:
        """Metric -> `lower` or `higher`, from the tags of the run, else of the baseline."""
        return {**declared_metrics(self.baseline.tags), **declared_metrics(self.run.tags)}

    def as_json(self) -> dict[str, Any]:
        """Returns the comparison in numbers, with null for unknown values.

        `not_compared` contains the reason for each question that must not be compared.
        """
        speed, memory, worst = self.speed, self.memory, self.worst
        reasons = {question: reason for question in QUESTIONS if (reason := self.exclusion(question))}
        return {
            "name": self.baseline.name,
            "speedup": 1 / speed.ratio if speed else None,
            "per": speed.per if speed else None,
            "seconds": speed.run if speed else None,
            "baseline_seconds": speed.baseline if speed else None,
            "memory_ratio": memory.ratio if memory else None,
            "validation_delta": worst.delta if worst else None,
            "validation_step": worst.step if worst else None,
            "validation_metric": worst.metric if worst else None,
            "metrics": [self._metric(several[-1]) for several in self.validated.values()],
            "first_other_loss": self.first_difference[0]
            if self.first_difference and not self.exclusion("validation")
            else None,
            "not_compared": reasons,
            "differences": [difference.as_json() for difference in self.differences],
        }

    @property
    def same_precision(self) -> bool:
        """Whether both runs have the same precision, both in settings and in measurement."""
        mine, theirs = (
            {key: value for key, value in settings_of(history) if last_part(key) in PRECISION}
            for history in (self.run, self.baseline)
        )
        weights = [history.model.dtypes if history.model else None for history in (self.run, self.baseline)]
        return self.run.precision == self.baseline.precision and mine == theirs and weights[0] == weights[1]

    @cached_property
    def speed(self) -> Speed | None:
        if self.exclusion("speed"):
            return None
        steps, mine, theirs = self.run.curve("step_seconds").with_common(self.baseline.curve("step_seconds"))
        usable = np.isfinite(mine) & np.isfinite(theirs) & (mine > 0) & (theirs > 0)
        steps, mine, theirs = steps[usable], mine[usable], theirs[usable]
        begin = min(WARM_UP_STEPS, len(steps) // 3)
        steps, mine, theirs = steps[begin:], mine[begin:], theirs[begin:]
        if len(steps) < MIN_STEPS:
            return None
        samples, baseline_samples = (median_of(history, "samples") for history in (self.run, self.baseline))
        different = samples > 0 and baseline_samples > 0 and abs(samples / baseline_samples - 1) > 0.01
        by = (samples, baseline_samples) if different else (1.0, 1.0)
        median, quarter = float(np.median(mine)) / by[0], float(np.quantile(mine, 0.25)) / by[0]
        normal = float(np.median(theirs)) / by[1]
        per = "sample" if different else "step"
        return Speed(median, normal, per, int(steps[0]), int(steps[-1]), len(steps), quarter > normal)

    @cached_property
    def memory(self) -> Memory | None:
        mine, theirs = (history.curve("device_allocated_bytes") for history in (self.run, self.baseline))
        if self.exclusion("memory") or len(mine) < MIN_MEMORY_READINGS or len(theirs) < MIN_MEMORY_READINGS:
            return None
        peak, other = float(mine.values.max()), float(theirs.values.max())
        return Memory(peak, other, int(mine.steps[0]), int(mine.steps[-1])) if peak > 0 and other > 0 else None

    @cached_property
    def validated(self) -> dict[str, list[Validation]]:
        """Metric -> the steps that both runs have and at which the baseline is finite.

        Metrics without such steps are omitted.
        """
        validated: dict[str, list[Validation]] = {}
        for metric, better in {} if self.exclusion("validation") else self.metrics.items():
            steps, mine, theirs = self.run.curve(metric).with_common(self.baseline.curve(metric))
            every = zip(steps.tolist(), mine.tolist(), theirs.tolist(), strict=True)
            several = [Validation(*values, metric, better) for values in every if math.isfinite(values[2])]
            if several:
                validated[metric] = several
        return validated

    @property
    def validations(self) -> list[Validation]:
        """The comparisons of val_loss."""
        return self.validated.get(next(iter(VALIDATION)), [])

    @property
    def worst(self) -> Validation | None:
        """The worst metric against the baseline, by the last value of each metric."""
        return max(
            (several[-1] for several in self.validated.values()), key=lambda validation: validation.delta, default=None
        )

    @cached_property
    def first_difference(self) -> tuple[int, float, float] | None:
        """The first step at which the losses differ in any bit, with both losses."""
        steps, mine, theirs = self.run.curve("loss").with_common(self.baseline.curve("loss"))
        different = np.flatnonzero(~_same(mine, theirs))
        return (
            (int(steps[different[0]]), float(mine[different[0]]), float(theirs[different[0]]))
            if different.size
            else None
        )

    @cached_property
    def common_losses(self) -> int:
        """Number of steps for which both runs have a loss."""
        return len(self.run.curve("loss").with_common(self.baseline.curve("loss"))[0])

    def _metric(self, last: Validation) -> dict[str, Any]:
        return {
            "name": last.metric,
            "better": last.better,
            "step": last.step,
            "run": last.run,
            "baseline": last.baseline,
            "delta": last.delta,
        }


def parse_share(text: str | None) -> float | None:
    """Parses a tag with the allowed deterioration of validation, as a share.

    Returns None for a text that is not a non-negative finite number.
    """
    try:
        share = float(text or "")
    except ValueError:
        return None
    return share if math.isfinite(share) and share >= 0 else None


def _same(mine: Floats, theirs: Floats) -> np.typing.NDArray[np.bool_]:
    """Element-wise bit equality; all NaNs are equal."""
    both_nan = np.isnan(mine) & np.isnan(theirs)
    same: np.typing.NDArray[np.bool_] = both_nan | (mine.view(np.uint32) == theirs.view(np.uint32))
    return same
