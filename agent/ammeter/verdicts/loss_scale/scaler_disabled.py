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
    where = f" used at {caller}" if caller else ""
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title="The GradScaler of a float16 run is disabled: small gradients become zero",
        cause=f"The GradScaler{where} {_why(device, below)}, while the forward pass runs in float16 autocast on"
        f" {' and '.join(below)}. A disabled scaler does not scale the loss, so gradients below 2^-24 become zero, and"
        " does not skip steps with Inf.",
        fix=f"Create the scaler{' that is' + where if where else ''} as torch.amp.GradScaler('{below[0]}'), without"
        " enabled=False; scaler.is_enabled() is True then. Or use dtype=torch.bfloat16 in autocast, which needs no"
        " scaler.",
        caller=caller,
        evidence={"scaler_device": device or None, "float16_on": below},
        **lifecycle_fields(state.opened),
    )


def _devices(data: dict[str, Any]) -> list[str]:
    return [str(device) for device in data.get("autocast") or ()] or ["cuda"]


def _why(device: str, below: list[str]) -> str:
    if device and device not in below:
        return f"is disabled, because it was created for {device}"
    return "is disabled, because it was created with enabled=False"


VERDICT = Verdict(
    id="scaler-disabled",
    severity="ticket",
    title="Scaler disabled",
    question="Is the GradScaler of a float16 run disabled?",
    columns=(),
    events=("usage.scaler_disabled",),
    state=SingleEventState,
    rows=False,
    judge=judge_event("usage.scaler_disabled", _conclude),
    explains=("no-loss-scaling", "gradient-underflow", "stagnation"),
)
