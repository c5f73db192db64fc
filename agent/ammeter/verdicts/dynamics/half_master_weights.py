"""half-master-weights: the optimizer updates half-precision weights without a float32 copy."""

from __future__ import annotations

from typing import Any

from ammeter.verdicts.framework.finding import Finding, Verdict, module_of
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event

STEPS_AT_1 = {"float16": "2^-10, a thousandth", "bfloat16": "2^-7, nearly a hundredth"}
"""Distance from 1 to the next larger number."""


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    caller = str(data.get("caller") or "") or None
    dtypes, tensors = _list(data, "dtypes") or ["half precision"], _list(data, "tensors")
    named = f" ({', '.join(tensors)}{', ...' if len(tensors) < int(data.get('count') or 0) else ''})" if tensors else ""
    optimizer = data.get("optimizer") or "The optimizer"
    first = tensors[0] if tensors else None
    coarse = "bfloat16" if "bfloat16" in dtypes else "float16"
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"Weights are kept in {' and '.join(dtypes)}",
        cause=f"{optimizer} updates {data.get('count')} of its {data.get('of')} tensors in {' and '.join(dtypes)}"
        f"{named}, and no float32 copy of them was found in its state. {_costs(data, coarse, caller)}",
        fix="Keep the weights in float32: leave out .half(), .bfloat16() or torch_dtype= where the model is made, and"
        f" let torch.autocast(device, dtype=torch.{coarse}) cast what is computed. Where memory is short, use an"
        " optimizer that keeps float32 copies, compensates (Kahan) or rounds stochastically.",
        tensor=first,
        module=module_of(first),
        caller=caller,
        evidence={name: data.get(name) for name in ("count", "of", "dtypes", "state", "held", "refused")},
        **lifecycle_fields(state.opened),
    )


def _costs(data: dict[str, Any], coarse: str, caller: str | None) -> str:
    if data.get("refused"):
        at = f" at {caller}" if caller else ""
        return (
            f'GradScaler refuses their gradients{at} with "Attempting to unscale FP16 gradients", which ends the run.'
        )
    return (
        f"Numbers near 1 are {STEPS_AT_1[coarse]}, apart in {coarse}: an update that changes one by less than half of"
        " that is rounded away, and the weight stays as it is."
    )


def _list(data: dict[str, Any], name: str) -> list[str]:
    return [str(each) for each in data.get(name) or ()]


VERDICT = Verdict(
    id="half-master-weights",
    severity="ticket",
    title="Half-precision weights",
    question="Does the optimizer update weights in half precision without a float32 copy?",
    columns=(),
    events=("usage.half_weights",),
    state=SingleEventState,
    rows=False,
    judge=judge_event("usage.half_weights", _conclude),
    explains=("lost-updates", "half-optimizer-state", "stagnation"),
)
