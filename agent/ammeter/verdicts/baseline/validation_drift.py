"""validation-drift: validation is worse than the baseline's at the same steps, beyond the limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Nothing, Verdict
from ammeter.verdicts.framework.run_comparison import RunComparison, Validation
from ammeter.wire.metric_directions import LOWER

DEFAULT_DELTA = 0.01
"""Default limit. MLPerf requires 99 % of float32's quality from a reduced precision. A run's tag `validation_delta`
sets another limit."""

OTHER_SEED_FACTOR = 2.0
"""Factor on the limit if the seeds differ: two float32 runs with two seeds also differ by about a percent."""

MIN_VALIDATIONS = 3
"""Validations that must be worse in a row: a single one is noisy while the loss still falls fast. For an ended run with
fewer validations, all of them."""


def judge(state: Nothing, pair: RunComparison) -> tuple[Nothing, Finding | None]:
    """Judges each metric; of several that drift, reports the worst."""
    limit = limit_of(pair)
    drifting = []
    for validations in pair.validated.values():
        series = _series(validations, limit)
        enough = len(series) >= MIN_VALIDATIONS or (pair.run.over and len(series) == len(validations))
        if series and (enough or not math.isfinite(series[-1].run)):
            drifting.append((series, validations))
    if not drifting:
        return state, None
    return state, _conclude(pair, *max(drifting, key=lambda drift: drift[0][-1].delta), limit)


def limit_of(pair: RunComparison) -> float:
    """Returns the limit for the relative deterioration of validation."""
    delta = DEFAULT_DELTA if pair.delta is None else pair.delta
    mine, theirs = pair.seeds
    return delta * OTHER_SEED_FACTOR if mine != theirs and pair.delta is None else delta


def _series(validations: Sequence[Validation], limit: float) -> list[Validation]:
    """Returns the uninterrupted series of worse validations at the end."""
    series: list[Validation] = []
    for validation in reversed(validations):
        if not validation.delta > limit:
            break
        series.insert(0, validation)
    return series


def _conclude(pair: RunComparison, series: Sequence[Validation], every: Sequence[Validation], limit: float) -> Finding:
    first, last = series[0], series[-1]
    opened = series[min(MIN_VALIDATIONS, len(series)) - 1]
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=_title(first, last),
        cause=_cause(pair, series, every, limit),
        fix=_fix(pair),
        first_step=first.step,
        opened_step=opened.step,
        last_step=last.step,
        evidence=_evidence(pair, series, limit),
    )


MAX_LISTED = 4
"""Settings that are named; the page of the comparison lists all of them."""

SUSPECTS = {
    "float16": "weights or optimizer state in float16, gradients that underflow, skipped steps, or a loss or softmax"
    " in float16",
    "bfloat16": "weights or optimizer state in bfloat16, whose rounding discards small updates, or a loss or softmax in"
    " bfloat16",
}
"""Precision of the run -> what makes it worse than a baseline in a wider one."""


def _title(first: Validation, last: Validation) -> str:
    name = "Validation loss" if last.metric == "val_loss" else last.metric
    worse = f"{wording.percent(last.delta)} worse than" if math.isfinite(last.delta) else "not finite, unlike"
    return f"{name} is {worse} the baseline's, since step {first.step}"


def _fix(pair: RunComparison) -> str:
    mine, theirs = pair.run.precision or "", pair.baseline.precision or "float32"
    if mine in SUSPECTS and mine != theirs:
        keys = [difference.key for difference in pair.differences]
        look = (
            f"Give both runs the same {wording.listed(keys[:MAX_LISTED])} first: they differ there as well."
            if keys
            else f"Train in {theirs}, or find what {mine} spoils: {SUSPECTS[mine]}. In what was recorded of both runs,"
            " nothing but the precision differs."
        )
    else:
        look = "Compare the settings, the data and the code of both runs: their precision is the same."
    return (
        f'{look} If the difference is acceptable, raise the limit with the run\'s tag validation_delta: "0.05" is 5 %.'
    )


def _cause(pair: RunComparison, series: Sequence[Validation], every: Sequence[Validation], limit: float) -> str:
    first, last = series[0], series[-1]
    baseline = f'the run "{pair.baseline.name}"' if pair.baseline.name else "its baseline"
    precisions = (
        f" This run is in {pair.run.precision}, the baseline in {pair.baseline.precision}."
        if pair.run.precision and pair.baseline.precision and pair.run.precision != pair.baseline.precision
        else ""
    )
    worse = f"{wording.percent(last.delta)} worse" if math.isfinite(last.delta) else "not a finite number"
    seeds = " The seeds differ, so chance may explain a part of it." if pair.seeds[0] != pair.seeds[1] else ""
    good = [validation.step for validation in every if validation.step < first.step]
    none_before = f"Step {first.step} is the first at which both runs have a value, so it may have begun before."
    before = f"At step {good[-1]} the difference was within the limit." if good else none_before
    return (
        f"Since step {first.step}, {_metric_text(last)} is worse than that of {baseline} by more than the limit"
        f" of {wording.percent(limit)}, in {wording.count(len(series), 'validation')} in a row. At step {last.step} it"
        f" is {last.run:.4g} against {last.baseline:.4g}: {worse}. {before}{precisions}{seeds}"
    )


def _evidence(pair: RunComparison, series: Sequence[Validation], limit: float) -> dict[str, Any]:
    last = series[-1]
    return {
        "metric": last.metric,
        last.metric: wording.number(last.run),
        f"baseline_{last.metric}": wording.number(last.baseline),
        "delta": wording.number(round(last.delta, 5)),
        "limit": limit,
        "in_a_row": len(series),
        "baseline": pair.baseline.name,
    }


def _metric_text(last: Validation) -> str:
    if last.metric == "val_loss" and last.better == LOWER:
        return "the validation loss"
    return f"{last.metric} ({last.better} is better)"


VERDICT = Verdict(
    id="validation-drift",
    severity="ticket",
    title="Validation worse than the baseline's",
    question="Is validation worse than the baseline's at the same steps, by more than the limit?",
    columns=("val_loss",),
    events=("values.logged",),
    runs=judge,
)
