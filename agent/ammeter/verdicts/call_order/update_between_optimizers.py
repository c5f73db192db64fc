"""update-between-optimizers: the scale may change between the steps of two optimizers."""

from __future__ import annotations

from ammeter.verdicts.call_order.second_unscale import second_unscale
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    at = f" at {data['caller']}" if data.get("caller") else ""
    scale, before = (None if data.get(name) is None else float(data[name]) for name in ("scale", "scale_before"))
    is_unscaled = bool(data.get("unscaled"))
    effect = second_unscale(scale, before) if is_unscaled else _factor(scale, before)
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title="scaler.update() is called between the steps of two optimizers",
        cause=f"scaler.update(){at} was called after the step of one optimizer and before that of"
        f" {data.get('optimizer')}. {effect} Each of"
        " these updates also counts as a good step, so the scale grows too early.",
        fix=f"Remove scaler.update(){at}: call scaler.step() for every optimizer, then scaler.update() once, at the end"
        " of the iteration.",
        caller=data.get("caller") or None,
        evidence={"optimizer": data.get("optimizer"), "scale": scale, "scale_before": before},
        **lifecycle_fields(state.opened),
    )


def _factor(scale: float | None, before: float | None) -> str:
    if not (scale and before):
        return f"{_WRONG}."
    if scale == before:
        return f"{_WRONG}: in every step in which this update() changes the scale, they have the wrong size."
    return (
        f"{_WRONG}: here they were multiplied by {wording.scale(before)} and divided by {wording.scale(scale)}, so they"
        f" count {before / scale:.3g}-fold."
    )


_WRONG = "Its gradients are multiplied by the scale before update() and divided by the scale after it"


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
