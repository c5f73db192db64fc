"""not-comparable: a run and its baseline differ in more settings than the precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Nothing, Verdict
from ammeter.verdicts.framework.run_comparison import RunComparison
from ammeter.verdicts.framework.run_likeness import MODEL_KEYS, QUESTIONS, Difference, shown

MAX_LISTED_SETTINGS = 8
"""Maximum number of settings in the text; more do not help the reader."""

QUESTION_WORDS = {
    "speed": "step time",
    "memory": "memory",
    "cost": "cost",
    "validation": "validation",
}


def judge(state: Nothing, pair: RunComparison) -> tuple[Nothing, Finding | None]:
    return state, _conclude(pair) if pair.forbidding else None


def _conclude(pair: RunComparison) -> Finding:
    forbidding = pair.forbidding
    listed = forbidding[:MAX_LISTED_SETTINGS]
    keys = [difference.key for difference in listed]
    mine, theirs = (
        ", ".join(f"{difference.key} {_value(difference, getattr(difference, of))}" for difference in listed)
        for of in ("run", "baseline")
    )
    more = f", and {len(forbidding) - len(listed)} more" if len(forbidding) > len(listed) else ""
    excluded = [question for question in QUESTIONS if pair.exclusion(question)]
    compared = [question for question in QUESTIONS if question not in excluded]
    rest = f" Still compared: {_listed(compared)}." if compared else ""
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"The baseline differs in more than precision: {', '.join(keys[:3])}",
        cause=f"The run differs from {wording.baseline(pair.baseline.name)} in"
        f" {wording.count(len(forbidding), 'setting')} besides precision: it has {mine}; the baseline has"
        f" {theirs}{more}."
        f" These may explain a difference between the results, so Ammeter does not compare {_listed(excluded)}.{rest}",
        fix=f"Start a baseline with this run's values: {mine}. Or name"
        " another run with these values in this run's tag baseline. If the difference is intended, set this run's tag"
        f" baseline_ignore={','.join(keys)}.",
        first_step=0,
        opened_step=0,
        last_step=max(0, pair.run.last_step),
        evidence={
            "differences": [difference.as_json() for difference in listed],
            "count": len(forbidding),
            "not_compared": excluded,
            "baseline": pair.baseline.name,
        },
    )


def _value(difference: Difference, value: Any) -> str:
    return str(value) if difference.key in MODEL_KEYS else shown(value)


def _listed(questions: Sequence[str]) -> str:
    return wording.listed([QUESTION_WORDS[question] for question in questions])


VERDICT = Verdict(
    id="not-comparable",
    severity="ticket",
    title="Baseline not comparable",
    question="Does the baseline differ from the run in more than precision?",
    columns=(),
    events=(),
    explains=("slower-than-fp32", "validation-drift"),
    runs=judge,
)
