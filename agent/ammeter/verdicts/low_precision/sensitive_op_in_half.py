"""sensitive-op-in-half: an operator that needs float32 runs in half precision, and its result is off."""

from __future__ import annotations

from typing import Any

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.readings import Readings, under_autocast
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event

MIN_ERROR = 0.01
"""Root mean square of the error over that of the result in float32. Rounding to bfloat16 changes a number by 0.4 % at
most and by less than half of that on average: a few roundings in a row stay below, a larger error was amplified."""

LIMITS = {"bfloat16": ("256", "1/4"), "float16": ("2048", "1/32")}
"""Integers up to here have a number of their own, and the distance of numbers between 32 and 64: of 8 and 11 bits."""


def _decides(data: dict[str, Any]) -> bool:
    return float(data.get("error") or 0.0) >= MIN_ERROR


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    dtype, op = str(data.get("dtype") or "half precision"), str(data.get("op") or "operator")
    is_positions = bool(data.get("positions"))
    what = f"Positions are computed in {dtype}" if is_positions else f"{op} computes with numbers rounded to {dtype}"
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"{what}, {wording.percent(float(data['error']))} off",
        cause=_cause(data, op, dtype, is_positions),
        fix=_fix(data, dtype, is_positions),
        module=str(data.get("module") or "") or None,
        caller=str(data.get("rounded_at") or data.get("caller") or "") or None,
        evidence={name: data.get(name) for name in ("op", "error", "dtype", "positions", "caller", "rounded_op")},
        **lifecycle_fields(state.opened),
    )


def _cause(data: dict[str, Any], op: str, dtype: str, is_positions: bool) -> str:
    begin = f"{_name(data.get('rounded_op'))}{_at(data.get('rounded_at'))}"
    measured = (
        f"From {begin} to {_name(op)}{_at(data.get('caller'))}, the program computes with numbers rounded to {dtype}."
        f" Computed again in float32, the results differ by {wording.percent(float(data['error']))} on average (root"
        " mean square)."
    )
    if is_positions:
        exact, apart = LIMITS.get(dtype, LIMITS["bfloat16"])
        effect = (
            f"In {dtype}, most integers above {exact} have no number, and numbers between 32 and 64 (radians) are"
            f" {apart} apart."
        )
    else:
        effect = "Each rounding is small, but a difference, a power or an exponential of rounded numbers amplifies it."
    return f"{measured} {effect}"


def _fix(data: dict[str, Any], dtype: str, is_positions: bool) -> str:
    at = _at(data.get("rounded_at") or data.get("caller"))
    island = "inside with torch.autocast(device_type, enabled=False):"
    if is_positions:
        return (
            f"Compute positions, frequencies and angles in float32{at}, {island} create them with"
            f" dtype=torch.float32 or .float(), and cast only the results of cos and sin to {dtype}."
        )
    return f"Compute this part in float32{at}, {island} convert its inputs with .float(), and cast only its result."


def _name(op: Any) -> str:
    return {"to_copy": "a cast"}.get(str(op), str(op or "an operator"))


def _at(line: Any) -> str:
    return f" at {line}" if line else ""


VERDICT = Verdict(
    id="sensitive-op-in-half",
    severity="ticket",
    title="Sensitive operator in half precision",
    question="Does an operator that needs float32 lose its accuracy in half precision?",
    columns=(),
    events=("kernels.sensitive",),
    needs=(Readings("kernels.census", 1, within=1000),),
    applies=under_autocast,
    state=SingleEventState,
    rows=False,
    judge=judge_event("kernels.sensitive", _conclude, decides=_decides),
)
