"""lopsided-step: of the optimizers under one scaler, some often step while others are skipped."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.single_event import truncated
from ammeter.wire.columns import View
from ammeter.wire.frames import Event

MIN_MORE_STEPS = 3
"""Number of lopsided steps after the first one that shows a pattern."""

MIN_SHARE = 0.01
"""Share of lopsided steps from which they matter. PyTorch's AMP examples state that one of several optimizers may skip
a step while another does not, and that this is harmless if it happens every several hundred iterations."""

MIN_SPAN_STEPS = 20
"""Minimum number of steps that the lopsided steps must span. A scale that is too high for one of the optimizers is
reduced 2^20-fold in as many steps; lopsided steps that end by then belong to one such episode."""


class State(msgspec.Struct, frozen=True, array_like=True):
    """The counts of lopsided steps.

    Attributes:
        step: Step of the event from which the share is counted; -1 before there was one.
        times: Count of that event.
        count: Count so far.
    """

    opened: Lifecycle = Lifecycle()
    step: int = -1
    times: int = 0
    count: int = 0
    data: dict[str, Any] = {}


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("usage.lopsided_step"):
        if isinstance(part, Event) and not state.opened.active:
            state = _counted(state, part)
    return state, changed(_conclude, before, state)


def _counted(state: State, event: Event) -> State:
    """Updates the counts from an event.

    The event arrives at the 1st, 2nd, 4th, 8th ... occurrence; its count covers the occurrences in between.
    """
    times = int(event.data.get("times", 1))
    more, steps = times - state.times, event.step - state.step
    if state.step < 0 or more < MIN_SHARE * steps:
        return State(step=event.step, times=times)
    if more < MIN_MORE_STEPS or steps < MIN_SPAN_STEPS:
        return state
    data = {name: truncated(event.data.get(name)) for name in ("skipped", "applied", "scale")}
    return replace(state, opened=state.opened.at(state.step, event.step), count=times, data=data)


def _conclude(state: State) -> Finding:
    data, opened = state.data, state.opened
    more, steps = state.count - state.times, opened.step - opened.first
    scale = None if data.get("scale") is None else float(data["scale"])
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title="One optimizer is skipped while another steps, under the same GradScaler",
        cause=_cause(state, more, steps, scale),
        fix="Step all of them or none: scaler.unscale_() for each optimizer; norm ="
        " torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm); if norm.isfinite(): scaler.step() for each;"
        " then scaler.update() once, in any case."
        + (
            f" For fewer skips, use GradScaler(init_scale={scale / 2:g}) with the default growth_interval of 2000."
            if scale
            else ""
        ),
        evidence=_evidence(data, more, steps, scale),
        **lifecycle_fields(opened),
    )


def _cause(state: State, more: int, steps: int, scale: float | None) -> str:
    data, opened = state.data, state.opened
    behind, ahead = _names(data.get("skipped")), _names(data.get("applied"))
    now = f" at a scale of {wording.scale(scale)}" if scale else ""
    return (
        f"In {more} of the {wording.count(steps, 'step')} after step {opened.first} ({wording.percent(more / steps)}),"
        " GradScaler skipped the step of one optimizer and applied that of another, so parts of the model train without"
        f" the others. At step {opened.step}, {behind} was skipped{now} and {ahead} stepped."
    )


def _evidence(data: dict[str, Any], more: int, steps: int, scale: float | None) -> dict[str, Any]:
    return {
        "skipped": data.get("skipped"),
        "applied": data.get("applied"),
        "lopsided_steps": more,
        "share": round(more / steps, 4),
        "scale": scale,
    }


def _names(several: Any) -> str:
    return " and ".join(map(str, several)) if isinstance(several, list | tuple) and several else "one of them"


VERDICT = Verdict(
    id="lopsided-step",
    severity="ticket",
    title="One optimizer steps, another is skipped",
    question="Does one optimizer of a scaler often step while another is skipped?",
    columns=(),
    events=("usage.lopsided_step",),
    state=State,
    rows=False,
    judge=judge,
)
