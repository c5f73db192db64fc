"""update-between-optimizers: the scale may change between the steps of two optimizers."""

from __future__ import annotations

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    at = f" at {data['caller']}" if data.get("caller") else ""
    scale, before = (None if data.get(name) is None else float(data[name]) for name in ("scale", "scale_before"))
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title="scaler.update() comes between two optimizers",
        cause=f"scaler.update(){at} was called after one optimizer had stepped and before {data.get('optimizer')} did,"
        f" whose gradients come from before it. {_factor(scale, before)} Every such update() also counts as one more"
        " good step, so the scale grows too early.",
        fix=f"Take away scaler.update(){at}: call scaler.step() for every optimizer first, then scaler.update() once,"
        " at the end of the iteration.",
        caller=data.get("caller") or None,
        evidence={"optimizer": data.get("optimizer"), "scale": scale, "scale_before": before},
        **lifecycle_fields(state.opened),
    )


def _factor(scale: float | None, before: float | None) -> str:
    if not (scale and before):
        return "They have the scale from before it and are divided by the one after it."
    if scale == before:
        return f"The scale stayed {wording.scale(scale)} this time; where it changes, they are divided by a wrong one."
    return (
        f"They were multiplied by {wording.scale(before)} and are divided by {wording.scale(scale)}, so they count"
        f" {before / scale:.3g}-fold."
    )


VERDICT = Verdict(
    id="update-between-optimizers",
    severity="ticket",
    title="update() between two optimizers",
    question="Is scaler.update() called between the steps of two optimizers?",
    columns=(),
    events=("usage.update_between_optimizers",),
    state=SingleEventState,
    rows=False,
    judge=judge_event("usage.update_between_optimizers", _conclude),
)
