"""not-as-asked: half precision was asked for, and the loss is computed in another dtype."""

from __future__ import annotations

from typing import Any

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    asked, ran = str(data.get("asked") or "float16"), str(data.get("ran") or "float32")
    caller = str(data.get("caller") or "") or None
    reason = str(data.get("reason") or "")
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"{asked} was asked for, but the loss is computed in {ran}",
        cause=_cause(data, reason, asked, ran, caller),
        fix=_fix(data, reason, asked, caller),
        caller=caller,
        evidence={
            "asked": asked,
            "ran": ran,
            "reason": reason or None,
            "autocast_device": data.get("device") or None,
            "trained_on": list(data.get("trained_on") or ()),
            "scale": data.get("scale"),
        },
        **lifecycle_fields(state.opened),
    )


def _cause(data: dict[str, Any], reason: str, asked: str, ran: str, caller: str | None) -> str:
    at, device = f" at {caller}" if caller else "", str(data.get("device") or "")
    trained = wording.listed([str(name) for name in data.get("trained_on") or ()] or ["another device"])
    scale = data.get("scale")
    scaler = " An enabled GradScaler"
    scaled = f"{scaler} (scale {scale:g}) has no use there." if isinstance(scale, float | int) else ""
    return wording.sentence(
        {
            "refused": f"PyTorch disabled torch.autocast('{device}'){at}, because this machine has no such device;"
            f" the model is on {trained} and computes its loss in {ran}.{scaled}",
            "wrong-device": f"autocast for '{device}'{at} does not concern a model on {trained}, which computes its"
            f" loss in {ran}.{scaled}",
            "not-entered": f"the autocast context created{at} was not entered, so the loss is computed in {ran}:"
            f" torch.autocast() has an effect in a with statement or as a decorator.{scaled}",
            "outside": f"autocast is entered{at}, but the forward pass runs outside of it: no tensor of the loss is in"
            f" {asked}.{scaled}",
            "disabled": f"autocast{at} is created with enabled=False, so the loss is computed in {ran}, while the"
            f" scaler is enabled.{scaled}",
            "float32": f"autocast{at} is created with dtype=torch.float32, so the loss is computed in {ran}, while the"
            f" scaler is enabled.{scaled}",
            "other-dtype": f"autocast{at} asks for {asked}, but the loss is computed in {ran}: an inner autocast or a"
            f" cast has priority.{scaled}",
        }.get(
            reason,
            f"an enabled GradScaler scales the loss{at}, but no tensor of the loss is in {asked}: autocast was not"
            f" entered around the forward pass.{scaled}",
        )
    )


def _fix(data: dict[str, Any], reason: str, asked: str, caller: str | None) -> str:
    at, trained = f" at {caller}" if caller else "", [str(name) for name in data.get("trained_on") or ()]
    device = trained[0] if trained else "cuda"
    context = f"with torch.autocast('{device}', dtype=torch.{asked}):"
    return {
        "refused": f"Write torch.autocast(device.type, dtype=torch.{asked}){at}, with the device of the model"
        f" ('{device}'), or run on the device that was meant.",
        "wrong-device": f"Write torch.autocast(device.type, dtype=torch.{asked}){at}, with the device of the model"
        f" ('{device}').",
        "not-entered": f"Write '{context}'{at} around the forward pass and the loss.",
        "outside": f"Put the forward pass and the loss into the block of '{context}'{at}.",
        "disabled": f"Pass the same flag to autocast{at} and to GradScaler(enabled=...): set it in both for {asked},"
        " and clear it in both for float32.",
        "float32": f"Write dtype=torch.float16 in autocast{at}, or remove the GradScaler for a float32 run.",
        "other-dtype": f"Remove the inner autocast or cast, or ask for its dtype{at} and drop the GradScaler, which"
        " only float16 needs.",
    }.get(
        reason,
        f"Put the forward pass and the loss into the block of '{context}', or remove the GradScaler for a float32 run.",
    )


VERDICT = Verdict(
    id="not-as-asked",
    severity="ticket",
    title="Another precision than asked for",
    question="Is the loss computed in another dtype than autocast and GradScaler ask for?",
    columns=(),
    events=("usage.not_as_asked",),
    state=SingleEventState,
    rows=False,
    judge=judge_event("usage.not_as_asked", _conclude),
    explains=("pointless-scaler", "fp32-fallback", "slower-than-fp32", "overflow-storm", "stale-stack"),
)
