"""half-master-weights: the optimizer updates half-precision weights without a float32 copy."""

from __future__ import annotations

from typing import Any

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict, module_of
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event

SPACING_AT_1 = {"float16": "0.001 (2^-10)", "bfloat16": "0.008 (2^-7)"}
"""Distance from 1 to the next larger number."""


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    caller = str(data.get("caller") or "") or None
    dtypes, tensors = _list(data, "dtypes") or ["half precision"], _list(data, "tensors")
    more = int(data.get("count") or 0) - len(tensors)
    named = wording.listed([*tensors, *([f"{more} others"] if more > 0 else [])]) if tensors else ""
    optimizer = data.get("optimizer") or "The optimizer"
    first = tensors[0] if tensors else None
    where = f" at {caller}" if caller and not data.get("refused") else ""
    coarse = "bfloat16" if "bfloat16" in dtypes else "float16"
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"Trained weights are {' and '.join(dtypes)}, without float32 master weights",
        cause=f"{optimizer}{where} updates {data.get('count')} of its {data.get('of')} tensors in"
        f" {' and '.join(dtypes)}, and no float32 master weights were found in its state."
        f" {_effect(data, coarse, caller)}{f' The tensors are {named}.' if named else ''}",
        fix="Keep the weights in float32: remove .half(), .bfloat16() or torch_dtype= where the model is created, and"
        f" use torch.autocast(device, dtype=torch.{coarse}) for the forward pass. If memory is short, use an optimizer"
        " with float32 master weights, Kahan summation or stochastic rounding.",
        tensor=first,
        module=module_of(first),
        caller=caller,
        evidence={name: data.get(name) for name in ("count", "of", "dtypes", "state", "held", "refused")},
        **lifecycle_fields(state.opened),
    )


def _effect(data: dict[str, Any], coarse: str, caller: str | None) -> str:
    if data.get("refused"):
        at = f" at {caller}" if caller else ""
        return (
            f'GradScaler rejects their gradients{at} with "Attempting to unscale FP16 gradients", which ends the run'
            " unless the program catches the error."
        )
    return (
        f"In {coarse} neighbouring numbers near 1 differ by {SPACING_AT_1[coarse]}: an update of less than half of that"
        " is rounded away."
    )


def _list(data: dict[str, Any], name: str) -> list[str]:
    return [str(value) for value in data.get(name) or ()]


VERDICT = Verdict(
    id="half-master-weights",
    severity="ticket",
    title="Half-precision weights",
    question="Does the optimizer update half-precision weights without float32 master weights?",
    columns=(),
    events=("usage.half_weights",),
    state=SingleEventState,
    rows=False,
    judge=judge_event("usage.half_weights", _conclude),
    explains=("loss-in-half", "lost-updates", "half-optimizer-state", "stagnation"),
)
