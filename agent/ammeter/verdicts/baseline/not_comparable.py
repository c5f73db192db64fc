"""not-comparable: a run and its baseline differ in more settings than the precision."""

from __future__ import annotations

from collections.abc import Sequence

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Nothing, Verdict
from ammeter.verdicts.framework.run_comparison import RunComparison
from ammeter.verdicts.framework.run_likeness import QUESTIONS

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
    keys, texts = [difference.key for difference in listed], "; ".join(difference.text for difference in listed)
    more = f", and {len(forbidding) - len(listed)} more" if len(forbidding) > len(listed) else ""
    excluded = [question for question in QUESTIONS if pair.exclusion(question)]
    compared = [question for question in QUESTIONS if question not in excluded]
    rest = f" Still compared: {_listed(compared)}." if compared else ""
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"The baseline differs in more than precision: {', '.join(keys[:3])}",
        cause=f"The run and its baseline {pair.baseline.name or 'run'} differ in"
        f" {wording.count(len(forbidding), 'setting')} besides precision: {texts}{more}."
        f" These may explain a difference between the results, so Ammeter does not compare {_listed(excluded)}.{rest}",
        fix="Start the baseline again with the run's values, or put a run with the same values into the tag `baseline`."
        f" If the difference is intended, set the run's tag `baseline_ignore={','.join(keys)}`, or call"
        f" `ammeter gate RUN BASELINE --ignore {','.join(keys)}`.",
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
