"""pointless-scaler: a scaler works on bfloat16, which has the range of float32 and needs no scale."""

from __future__ import annotations

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event


def _conclude(state: SingleEventState) -> Finding:
    caller = str(state.data.get("caller") or "") or None
    scale = state.data.get("scale")
    by = f" by {wording.scale(scale)}" if isinstance(scale, float | int) else ""
    at = f" at {caller}" if caller else ""
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title="A GradScaler is enabled in a bfloat16 run",
        cause=f"An enabled GradScaler multiplies the loss{by}{at}, although autocast uses bfloat16, which has the range"
        " of float32 and does not need loss scaling. Every step pays for unscaling and for a wait until all gradients"
        " are checked, and steps are skipped once the scale has grown too high.",
        fix=f"Remove the scaler: replace scaler.scale(loss).backward(){at} by loss.backward() and"
        " scaler.step(optimizer) by optimizer.step(), and delete unscale_() and update(). If the program supports both"
        " dtypes, create it with GradScaler(device, enabled=dtype == torch.float16).",
        caller=caller,
        evidence={"scale": scale},
        **lifecycle_fields(state.opened),
    )


VERDICT = Verdict(
    id="pointless-scaler",
    severity="ticket",
    title="GradScaler without float16",
    question="Is a GradScaler enabled although autocast uses bfloat16?",
    columns=(),
    events=("usage.scaler_with_bf16",),
    state=SingleEventState,
    rows=False,
    judge=judge_event("usage.scaler_with_bf16", _conclude),
    explains=("overflow-storm",),
)
