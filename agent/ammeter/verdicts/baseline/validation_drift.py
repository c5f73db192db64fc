"""validation-drift: validation is worse than the baseline's at the same steps, beyond the limit."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Nothing, Verdict
from ammeter.verdicts.framework.run_comparison import RunComparison, Validation
from ammeter.wire.metric_directions import LOWER

DELTA = 0.01
"""Default limit. MLPerf requires 99 % of float32's quality from a reduced precision. A run's tag `validation_delta`
sets another limit."""

OTHER_SEED = 2.0
"""Factor on the limit if the seeds differ: two float32 runs with two seeds also differ by about a percent."""

IN_A_ROW = 3
"""Validations that must be worse in a row: a single one is noisy while the loss still falls fast. For an ended run with
fewer validations, all of them."""


def judge(state: Nothing, pair: RunComparison) -> tuple[Nothing, Finding | None]:
    """Judges each metric; of several that drift, reports the worst."""
    limit = limit_of(pair)
    drifting = []
    for validations in pair.validated.values():
        series = _series(validations, limit)
        enough = len(series) >= IN_A_ROW or (pair.run.over and len(series) == len(validations))
        if series and (enough or not math.isfinite(series[-1].run)):
            drifting.append((series, validations))
    if not drifting:
        return state, None
    return state, _conclude(pair, *max(drifting, key=lambda each: each[0][-1].delta), limit)


def limit_of(pair: RunComparison) -> float:
    """Returns the limit for the relative deterioration of validation."""
    delta = DELTA if pair.delta is None else pair.delta
    mine, theirs = pair.seeds
    return delta * OTHER_SEED if mine != theirs and pair.delta is None else delta


def _series(validations: Sequence[Validation], limit: float) -> list[Validation]:
    """Returns the uninterrupted series of worse validations at the end."""
    found: list[Validation] = []
    for each in reversed(validations):
        if not each.delta > limit:
            break
        found.insert(0, each)
    return found


def _conclude(pair: RunComparison, series: Sequence[Validation], every: Sequence[Validation], limit: float) -> Finding:
    first, last = series[0], series[-1]
    opened = series[min(IN_A_ROW, len(series)) - 1]
    baseline = pair.baseline.name or "its baseline"
    worse = f"{wording.percent(last.delta)} worse" if math.isfinite(last.delta) else "no finite number"
    seeds = " The seeds differ, so a part of it may be chance." if pair.seeds[0] != pair.seeds[1] else ""
    good = [each.step for each in every if each.step < first.step]
    alone = f"step {first.step} is the first at which both have one"
    until = f"the one of step {good[-1]} was within it" if good else alone
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"Validation is worse than the baseline's since step {first.step}",
        cause=f"At step {last.step} {_named(last)} is {last.run:.4g} against {last.baseline:.4g} of {baseline}:"
        f" {worse}, where {wording.percent(limit)} is the limit. It has been so since step {first.step},"
        f" {wording.count(len(series), 'validation')} in a row; {until}.{seeds}",
        fix=f"Go back to the last checkpoint from before step {first.step}, and from there train in"
        f" {pair.baseline.precision or 'float32'} until it is clear what the precision takes: weights or optimizer"
        " state in half precision, updates lost to rounding, gradients lost to underflow, a loss or softmax in"
        " float16. Where the difference is acceptable, agree on it with the tag validation_delta.",
        first_step=first.step,
        opened_step=opened.step,
        last_step=last.step,
        evidence={
            "metric": last.metric,
            last.metric: wording.number(last.run),
            f"baseline_{last.metric}": wording.number(last.baseline),
            "delta": wording.number(round(last.delta, 5)),
            "limit": limit,
            "in_a_row": len(series),
            "baseline": pair.baseline.name,
        },
    )


def _named(last: Validation) -> str:
    if last.metric == "val_loss" and last.better == LOWER:
        return "the validation loss"
    return f"{last.metric}, of which {last.better} is better,"


VERDICT = Verdict(
    id="validation-drift",
    severity="ticket",
    title="Validation worse than the baseline's",
    question="Is validation worse than the baseline's at the same steps, by more than was agreed on?",
    columns=("val_loss",),
    events=("values.logged",),
    runs=judge,
)
