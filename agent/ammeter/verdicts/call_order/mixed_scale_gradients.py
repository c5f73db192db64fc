"""mixed-scale-gradients: unscale_() or update() ran in the middle of the accumulation for one step."""

from __future__ import annotations

from typing import Any, NamedTuple

from ammeter.verdicts.call_order import own_scaling
from ammeter.verdicts.call_order.second_unscale import second_unscale
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event


class Words(NamedTuple):
    title: str
    cause: str
    fix: str


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    words = _words(data)
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=words.title,
        cause=words.cause,
        fix=words.fix,
        caller=data.get("caller") or None,
        evidence={name: data.get(name) for name in ("optimizer", "after", "scale", "scale_before")},
        **lifecycle_fields(state.opened),
    )


def _words(data: dict[str, Any]) -> Words:
    scale, before = _number(data, "scale"), _number(data, "scale_before")
    if data.get("own"):
        return Words("backward() after the division by the loss scale", *own_scaling.mixed_scale(data))
    if data.get("after") == "second unscale_":
        return Words("unscale_() a second time without update()", _twice(data), _FIX_TWICE)
    if data.get("after") == "unscale_ of a wrapper":
        return Words("Gradients are unscaled twice", _through_wrapper(data, scale), _FIX_WRAPPER)
    if data.get("after") == "unscale_":
        return Words(
            "backward() after unscale_() mixes scaled and unscaled gradients",
            _after_unscale(data, scale),
            _fix(data, unscaled=True),
        )
    return Words(
        "update() between backward() and step()", _after_update(data, scale, before), _fix(data, unscaled=False)
    )


def _twice(data: dict[str, Any]) -> str:
    return (
        f"scaler.unscale_(){_at(data)} was called for {data.get('optimizer')} a second time since the last"
        " scaler.update(), which raises an error: it would divide the gradients by the loss scale twice."
    )


_FIX_TWICE = (
    "Call scaler.update() once in every iteration, also in one that leaves out scaler.step(optimizer). With"
    " accumulation, call scaler.unscale_(optimizer) once per step, after the last micro-batch."
)


def _through_wrapper(data: dict[str, Any], scale: float | None) -> str:
    share = f" They count 1 part in {scale:g} then." if scale else ""
    return (
        f"scaler.unscale_() was called with an object that wraps {data.get('optimizer')}, and scaler.step(){_at(data)}"
        " with the optimizer itself. GradScaler notes for each object whether it has unscaled it, so step() divides the"
        f" gradients by the loss scale a second time.{share}"
    )


_FIX_WRAPPER = "Call scaler.unscale_() with the same object as scaler.step(), the optimizer inside of the wrapper."


def _after_unscale(data: dict[str, Any], scale: float | None) -> str:
    by = f"the loss scale of {wording.scale(scale)}" if scale else "the loss scale"
    times = f"{scale:g} times" if scale and scale > 1 else "many times"
    return (
        f"backward(){_at(data)} ran after scaler.unscale_() of {data.get('optimizer')} and added gradients that are"
        f" multiplied by {by} to gradients that are already divided by it. scaler.step() does not divide the sum again,"
        f" so the gradients of this backward() are {times} too large in it."
    )


def _after_update(data: dict[str, Any], scale: float | None, before: float | None) -> str:
    order = f"scaler.update(){_at(data)} was called between a backward() and the step of {data.get('optimizer')}"
    if data.get("unscaled"):
        return f"{order}. {second_unscale(scale, before)}"
    if not (scale and before):
        return f"{order}, so its gradients have the scale from before the update and are divided by the one after it."
    if scale == before:
        return (
            f"{order}, so its gradients are divided by the wrong scale whenever this update changes the scale. So far"
            f" nothing is wrong: the scale was {wording.scale(scale)} before and after it."
        )
    return (
        f"{order}, so its gradients are divided by the wrong scale. They were multiplied by {wording.scale(before)} and"
        f" are divided by {wording.scale(scale)}, so they count {before / scale:.3g}-fold."
    )


def _fix(data: dict[str, Any], *, unscaled: bool) -> str:
    if unscaled:
        last = f"the backward(){_at(data)}" if _at(data) else "its last backward()"
        return (
            f"Call scaler.unscale_(optimizer) once per step, after {last}; with accumulation, after the last"
            " micro-batch."
        )
    return (
        f"Move scaler.update(){_at(data)} out of the accumulation: call it once per step, directly after"
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
    explains=("diverged", "activation-overflow", "nonfinite-loss", "nonfinite-gradient", "nonfinite-weights"),
)
