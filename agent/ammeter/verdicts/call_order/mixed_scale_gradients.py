"""mixed-scale-gradients: unscale_() or update() ran in the middle of the accumulation for one step."""

from __future__ import annotations

from typing import Any

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    scale, before = _number(data, "scale"), _number(data, "scale_before")
    unscaled = data.get("after") == "unscale_"
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title="Gradients of two scales are added up" if unscaled else "The scale is updated before the step",
        cause=_after_unscale(data, scale) if unscaled else _after_update(data, scale, before),
        fix=_fix(data, unscaled),
        caller=data.get("caller") or None,
        evidence={name: data.get(name) for name in ("optimizer", "after", "scale", "scale_before")},
        **lifecycle_fields(state.opened),
    )


def _after_unscale(data: dict[str, Any], scale: float | None) -> str:
    by = f"the scale of {wording.scale(scale)}" if scale else "the loss scale"
    share = f" what was unscaled counts for 1 part in {scale:g}" if scale else " the two do not fit together"
    return (
        f"After scaler.unscale_() of {data.get('optimizer')}, backward(){_at(data)} added gradients that are multiplied"
        f" by {by} to those that no longer are. In the sum{share}, and the step does not unscale it again."
    )


def _after_update(data: dict[str, Any], scale: float | None, before: float | None) -> str:
    what = (
        f"scaler.update(){_at(data)} came between a backward() and the step of {data.get('optimizer')} that uses its"
        " gradients"
    )
    if not (scale and before):
        return f"{what}: they have the scale from before it and are divided by the one after it."
    if scale == before:
        return (
            f"{what}. The scale was {wording.scale(scale)} before and after it, so nothing is wrong yet; at its next"
            " change these gradients are divided by the wrong scale."
        )
    return (
        f"{what}: they were multiplied by {wording.scale(before)} and are divided by {wording.scale(scale)}, so they"
        f" count {before / scale:.3g}-fold."
    )


def _fix(data: dict[str, Any], unscaled: bool) -> str:
    if unscaled:
        last = f", which is the one{_at(data)}" if _at(data) else ""
        return (
            f"Call scaler.unscale_(optimizer) once per step, behind its last backward(){last}; with accumulation only"
            " after the last micro-batch."
        )
    return (
        f"Take scaler.update(){_at(data)} out of the accumulation: call it once per step, right behind"
        " scaler.step(optimizer)."
    )


def _at(data: dict[str, Any]) -> str:
    return f" at {data['caller']}" if data.get("caller") else ""


def _number(data: dict[str, Any], name: str) -> float | None:
    return None if data.get(name) is None else float(data[name])


VERDICT = Verdict(
    id="mixed-scale-gradients",
    severity="ticket",
    title="Gradients of two scales",
    question="Are gradients of two scales added up for one step?",
    columns=(),
    events=("usage.mixed_scale",),
    state=SingleEventState,
    rows=False,
    judge=judge_event("usage.mixed_scale", _conclude),
    explains=("nonfinite-loss", "nonfinite-gradient", "nonfinite-weights"),
)
