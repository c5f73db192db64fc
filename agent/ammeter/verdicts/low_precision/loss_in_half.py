"""loss-in-half: the loss itself is computed in half precision."""

from __future__ import annotations

from typing import Any

from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event

PRECISION = {
    "bfloat16": "has 8 significant bits, so that its numbers between 1 and 2 are 1/128 apart",
    "float16": "has 11 significant bits and ends at 65504, which a scaled loss exceeds easily",
}
"""Significant bits include the implicit one: between 1 and 2 neighbours differ by 2^-7 and 2^-10."""

CASTS = ("to", "to_copy", "type", "half", "bfloat16")
"""Names of operators that cast."""

LOG_SOFTMAX = "log_softmax"
"""Operator of an event about the log-probabilities of a loss that is itself float32."""


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    caller, dtype = str(data.get("caller") or ""), str(data.get("dtype") or "bfloat16")
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"The {_what(data)} computed in {dtype}",
        cause=_cause(data, caller, dtype),
        fix=_fix(data, caller),
        caller=caller or None,
        evidence={name: data.get(name) for name in ("dtype", "operator")},
        **lifecycle_fields(state.opened),
    )


def _what(data: dict[str, Any]) -> str:
    return "log-probabilities of the loss are" if data.get("operator") == LOG_SOFTMAX else "loss is"


def _cause(data: dict[str, Any], caller: str, dtype: str) -> str:
    at, operator = f" at {caller}" if caller else "", data.get("operator")
    precision = PRECISION.get(dtype, PRECISION["bfloat16"])
    if operator == LOG_SOFTMAX:
        where = at if data.get("computed") else f" of the loss of backward(){at}"
        return (
            f"The loss is computed from log-probabilities that log_softmax{where} returned in {dtype}, which"
            f" {precision}. Differences of two such numbers, as in a ratio of probabilities or a KL divergence, can"
            " consist largely of this rounding."
        )
    computed = f"The loss computed{at}" if data.get("computed") else f"The loss of backward(){at}"
    returned = f" Its last operator, {operator}, returned {dtype}." if operator else ""
    if operator in CASTS:
        returned = f" Its last operator is a cast, {operator}()."
    return (
        f"{computed} is {dtype}, which {precision}.{returned} Small improvements of"
        " the loss are rounded away, and so are parts of the gradients that begin there."
    )


def _fix(data: dict[str, Any], caller: str) -> str:
    at = f" at {caller}" if caller and data.get("computed") else ""
    if data.get("operator") == LOG_SOFTMAX:
        return (
            f"Pass logits.float() to log_softmax{at}, so that the log-probabilities and all that is computed from them"
            " are float32; do the same where the old or the reference log-probabilities are computed."
        )
    if data.get("operator") in CASTS:
        return (
            f"Remove the cast to {data.get('dtype') or 'half precision'}{at}, and pass logits.float() to the loss"
            " function."
        )
    return (
        f"Compute the loss in float32{at}: pass logits.float() to it (and regression targets in float32), and cast"
        " nothing to half precision after that."
    )


VERDICT = Verdict(
    id="loss-in-half",
    severity="ticket",
    title="Loss in half precision",
    question="Is the loss itself computed in half precision?",
    columns=(),
    events=("usage.loss_in_half",),
    state=SingleEventState,
    rows=False,
    judge=judge_event("usage.loss_in_half", _conclude),
)
