"""not-comparable: a run and its baseline differ in more settings than the precision."""

from __future__ import annotations

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Nothing, Verdict
from ammeter.verdicts.framework.run_comparison import RunComparison
from ammeter.verdicts.framework.run_likeness import QUESTIONS

NAMED = 8
"""Maximum number of settings in the text; more do not help the reader."""

QUESTION_WORDS = {
    "speed": "how long a step takes",
    "memory": "memory",
    "cost": "cost",
    "validation": "validation",
}


def judge(state: Nothing, pair: RunComparison) -> tuple[Nothing, Finding | None]:
    return state, _conclude(pair) if pair.forbidding else None


def _conclude(pair: RunComparison) -> Finding:
    forbidding = pair.forbidding
    named = forbidding[:NAMED]
    keys, said = [each.key for each in named], "; ".join(each.said for each in named)
    more = f", and {len(forbidding) - NAMED} more" if len(forbidding) > NAMED else ""
    questions = [each for each in QUESTIONS if pair.why(each)]
    left = [each for each in QUESTIONS if each not in questions]
    not_compared = wording.several([QUESTION_WORDS[each] for each in questions])
    rest = f" Still compared: {wording.several([QUESTION_WORDS[each] for each in left])}." if left else ""
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"The baseline was set up differently: {', '.join(keys[:3])}",
        cause=f"The run and its baseline {pair.baseline.name or 'run'} differ in"
        f" {wording.count(len(forbidding), 'setting')} beside their precision: {said}{more}."
        f" A difference between them need not come from the precision, so nothing is said of {not_compared}.{rest}",
        fix="Start the baseline again with the run's values, or name one that has them in the run's tag `baseline`."
        f" Where it is meant, say so: the run's tag `baseline_ignore={','.join(keys)}`, or"
        f" `ammeter gate RUN BASELINE --ignore {','.join(keys)}`.",
        first_step=0,
        opened_step=0,
        last_step=max(0, pair.run.last_step),
        evidence={
            "differences": [each.as_json() for each in named],
            "count": len(forbidding),
            "not_compared": questions,
            "baseline": pair.baseline.name,
        },
    )


VERDICT = Verdict(
    id="not-comparable",
    severity="ticket",
    title="Two runs that cannot be compared",
    question="Is the run held against one that was set up differently in more than its precision?",
    columns=(),
    events=(),
    explains=("slower-than-fp32", "validation-drift"),
    runs=judge,
)
