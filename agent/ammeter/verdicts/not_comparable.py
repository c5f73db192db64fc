"""not-comparable: a run is held against one that was set up differently in more than its precision."""

from __future__ import annotations

from typing import Any

from ammeter.verdicts import words
from ammeter.verdicts.finding import Finding, Nothing, Verdict
from ammeter.verdicts.pair import Difference, Pair

NAMED = 8
"""Settings that are named: more than a person takes in help nobody."""

LONGEST = 40
"""Characters of a value that are shown."""


def judge(state: Nothing, pair: Pair) -> tuple[Nothing, Finding | None]:
    return state, _conclude(pair) if pair.differences else None


def _conclude(pair: Pair) -> Finding:
    named = pair.differences[:NAMED]
    keys, said = [each.key for each in named], "; ".join(map(_said, named))
    more = f", and {len(pair.differences) - NAMED} more" if len(pair.differences) > NAMED else ""
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"The baseline was set up differently: {', '.join(keys[:3])}",
        cause=f"The run and its baseline {pair.baseline.name or 'run'} differ in"
        f" {words.count(len(pair.differences), 'setting')} beside their precision: {said}{more}."
        " So a difference in speed or validation may not come from the precision alone.",
        fix="Start the baseline again with the run's values, or name one that has them in the run's tag `baseline`."
        f" Where it is meant, say so: `ammeter gate RUN BASELINE --ignore {','.join(keys)}`.",
        first_step=0,
        opened_step=0,
        last_step=max(0, pair.run.last_step),
        evidence={
            "differences": [{"key": each.key, "run": each.run, "baseline": each.baseline} for each in named],
            "count": len(pair.differences),
            "baseline": pair.baseline.name,
        },
    )


def _said(difference: Difference) -> str:
    return f"{difference.key} is {_value(difference.run)} against {_value(difference.baseline)}"


def _value(value: Any) -> str:
    shown = "not set" if value is None else str(value)
    return " ".join(shown.split())[:LONGEST] or "empty"


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
