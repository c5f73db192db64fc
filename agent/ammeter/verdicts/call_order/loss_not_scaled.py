"""loss-not-scaled: backward() ran on an unscaled loss, and the scaler unscales its gradients anyway."""

from __future__ import annotations

from typing import Any

from ammeter.verdicts.call_order import own_scaling
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    at = f" at {data['caller']}" if data.get("caller") else ""
    scale = None if data.get("scale") is None else float(data["scale"])
    part = bool(data.get("scaled_too"))
    own = own_scaling.loss_not_scaled(data) if data.get("own") else None
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=_title(scale, part),
        cause=own.cause if own else _before_scale(data, at) if scale is None else _cause(data, at, scale, part),
        fix=own.fix if own else _fix(at, part),
        caller=data.get("caller") or None,
        evidence={"optimizer": data.get("optimizer"), "scale": scale, "scaled_too": part},
        **lifecycle_fields(state.opened),
    )


def _title(scale: float | None, part: bool) -> str:
    loss = "A part of the loss" if part else "The loss"
    return f"{loss} is not scaled" + (f": its gradients end up {scale:g} times too small" if scale else "")


def _cause(data: dict[str, Any], at: str, scale: float, part: bool) -> str:
    loss = "a loss of which a part" if part else "a loss that"
    gradients = "the gradients of that part" if part else "the gradients"
    return (
        f"backward(){at} was called on {loss} did not come from scaler.scale(), but the step of"
        f" {data.get('optimizer')} goes through the scaler, which divides {gradients} by the loss scale of"
        f" {wording.scale(scale)}. They end up that many times too small, and small gradients were not protected from"
        " underflow in float16."
    )


def _before_scale(data: dict[str, Any], at: str) -> str:
    return (
        f"scaler.step() of {data.get('optimizer')} was called before any scaler.scale(), on gradients of"
        f" backward(){at}: GradScaler raises an AssertionError, which ends the run unless the program catches it."
    )


def _fix(at: str, part: bool) -> str:
    if part:
        return (
            f"Add up all parts of the loss and call scaler.scale(loss).backward(){at}. If each part has its own"
            " backward(), call it on scaler.scale(part)."
        )
    return (
        f"Call scaler.scale(loss).backward(){at} instead of loss.backward(). scale() returns the scaled loss; it does"
        " not change the loss that is passed to it."
    )


VERDICT = Verdict(
    id="loss-not-scaled",
    severity="ticket",
    title="The loss is not scaled",
    question="Is backward() called on a loss that did not come from scaler.scale()?",
    columns=(),
    events=("usage.loss_not_scaled",),
    state=SingleEventState,
    rows=False,
    judge=judge_event("usage.loss_not_scaled", _conclude),
    explains=("gradient-underflow", "stagnation"),
)
