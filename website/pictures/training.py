"""Trains the reference program with a fault and reads what the run recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ammeter.journal.find import find_runs
from ammeter.recorded.recorded_run import RecordedRun, load
from ammeter.wire.columns import ABSENT, measured
from ammeter.wire.frames import is_loss
from bench.zoo.plan import Case, archs, faulty
from bench.zoo.runner import NEVER_ENDS, WatchedTraining, load_texts, run_stalled

MEASURES: Mapping[str, tuple[str, ...]] = {
    "autocast-scope": ("low_precision_share",),
    "broken-in-reduction": ("local_nonfinite", "reduced_nonfinite"),
    "cast-churn": ("cast_bytes",),
    "fp32-fallback": ("low_precision_share",),
    "gradient-underflow": ("grad.zeros", "grad.subnormals"),
    "half-reduction": ("grad_bits",),
    "lost-updates": ("update.lost",),
    "nonfinite-validation": ("val_loss",),
    "nonfinite-weights": ("weights_nonfinite",),
    "not-as-asked": ("low_precision_share",),
    "poisoned-buffers": ("val_loss",),
    "ranks-disagree": ("weights_checksum",),
    "rollout-mismatch": ("rollout_logprob_diff",),
    "run-stalled": ("step_seconds",),
    "scheduler-ahead": ("optimizer_lr",),
    "sign-flip": ("grad_agreement",),
    "slower-than-fp32": ("step_seconds",),
    "stagnation": ("update_ratio",),
    "validation-drift": ("val_loss",),
}
"""Verdict -> the columns that show it best, beside loss, loss scale and gradient norm. A statistic of single tensors is
that of the tensor that the finding names."""


@dataclass(frozen=True)
class Curve:
    """Values of a column by step. label: whose they are, if there are several in one panel."""

    label: str
    steps: list[int]
    values: list[float]


@dataclass(frozen=True)
class Run:
    """What a picture shows.

    Attributes:
        title: That of the finding.
        first_step: First step of the symptom.
        opened_step: Step at which the verdict was reached.
        panels: Column -> its curves, one for each rank, and one of the baseline.
        skipped: Steps that the scaler skipped.
    """

    verdict: str
    title: str
    first_step: int
    opened_step: int
    panels: dict[str, list[Curve]]
    skipped: list[int]


def cases() -> dict[str, Case]:
    """Returns the case of each verdict that has a fault: the first network, precision and onset of the zoo."""
    network = archs()[0]
    return {case.what: case for case in faulty((0,), onsets=1) if case.arch == network}


def recorded(case: Case, folder: Path) -> Run | None:
    """Trains in child processes, and returns what was recorded; None if the verdict was not reached."""
    load_texts()
    watched = WatchedTraining(case, folder / "watched")
    if case.what == NEVER_ENDS:
        _, findings = run_stalled(watched)
    else:
        watched.train()
        findings = watched.findings()
    finding = next((finding for finding in findings if finding["verdict"] == case.what), None)
    if finding is None:
        return None
    run = load(find_runs(folder / "watched" / "journal")[0])
    baseline = load(Path(watched.baseline)) if watched.baseline else None
    return Run(
        case.what, finding["title"], finding["first_step"], finding["opened_step"],
        _panels(run, baseline, finding), _skipped(run),
    )  # fmt: skip


def _panels(run: RecordedRun, baseline: RecordedRun | None, finding: Mapping[str, Any]) -> dict[str, list[Curve]]:
    loss = next((name for name in run.signals if is_loss(name)), "loss")
    panels = {}
    for column in (loss, "scale", "grad_norm", *MEASURES.get(finding["verdict"], ())):
        signal = column if "." not in column else f"{column}/{finding['tensor']}"
        curves = list(_curves(run, signal))
        if baseline is not None:
            both = [("this run", curves), ("baseline", list(_curves(baseline, signal)))]
            curves = [Curve(label, curve.steps, curve.values) for label, found in both for curve in found]
        if curves:
            panels[signal] = curves
    return panels


def _curves(run: RecordedRun, signal: str) -> Iterator[Curve]:
    ranks = [stream for stream in run.streams if stream.rank is not None]
    for stream in ranks:
        steps: list[int] = []
        values: list[float] = []
        for section in run.read(stream):
            column = section.columns.get(signal)
            if column is not None:
                there = measured(column)
                steps += section.steps[there].tolist()
                values += column[there].tolist()
        if steps:
            yield Curve(f"rank {stream.rank}" if len(ranks) > 1 else "", steps, values)


def _skipped(run: RecordedRun) -> list[int]:
    stream = next(stream for stream in run.streams if stream.rank is not None)
    return [
        step
        for section in run.read(stream)
        for step, skipped in zip(
            section.steps.tolist(), section.columns.get("skipped", np.full(len(section), ABSENT)), strict=True
        )
        if skipped > 0
    ]
