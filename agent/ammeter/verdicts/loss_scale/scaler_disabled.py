"""scaler-disabled: the scaler of a float16 run is disabled and returns its inputs unchanged."""

from __future__ import annotations

from typing import Any

from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    device, below = str(data.get("device") or ""), _devices(data)
    caller = str(data.get("caller") or "") or None
    where = f" that scale() is called on at {caller}" if caller else ""
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title="The loss scaler is disabled",
        cause=f"The scaler{where} {_why(device, below)}, while the forward pass runs in float16 autocast on"
        f" {' and '.join(below)}. A disabled scaler says nothing: the loss is not scaled, so gradients below 2^-24"
        " become zero, and a step with Inf is not skipped.",
        fix=f"Build it for the device that trains, scaler = torch.amp.GradScaler('{below[0]}'), and see that"
        " scaler.is_enabled() is true. Or use dtype=torch.bfloat16 in autocast, which needs no scaler.",
        caller=caller,
        evidence={"scaler_device": device or None, "float16_on": below},
        **lifecycle_fields(state.opened),
    )


def _devices(data: dict[str, Any]) -> list[str]:
    return [str(each) for each in data.get("autocast") or ()] or ["cuda"]


def _why(device: str, below: list[str]) -> str:
    if device and device not in below:
        return f"is disabled: it was made for {device}"
    return "is disabled: it was made with enabled=False"


VERDICT = Verdict(
    id="scaler-disabled",
    severity="ticket",
    title="Scaler disabled",
    question="Is the scaler that float16 autocast relies on switched off?",
    columns=(),
    events=("usage.scaler_disabled",),
    state=SingleEventState,
    rows=False,
    judge=judge_event("usage.scaler_disabled", _conclude),
    explains=("no-loss-scaling", "gradient-underflow", "stagnation"),
)
