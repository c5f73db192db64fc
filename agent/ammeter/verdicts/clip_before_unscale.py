"""clip-before-unscale: the limit on the norm was put on scaled gradients, and unscaling divides what is left."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from ammeter.block import View
from ammeter.verdicts import words
from ammeter.verdicts.finding import Finding, Verdict
from ammeter.verdicts.opened import Opened, changed, found
from ammeter.wire import Event

DELIBERATE = 16.0
"""A limit within this factor of the scale was multiplied by the scale on purpose, or costs next to nothing: usual
limits are 0.1 to 10, usual scales 2^10 and more."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Opened = Opened()
    caller: str = ""
    limit: float = 0.0
    scale: float = 0.0


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("usage.clip_before_unscale"):
        if isinstance(part, Event):
            state = _event(state, part)
    return state, changed(_conclude, before, state)


def _event(state: State, event: Event) -> State:
    limit, scale = float(event.data.get("max_norm", 0.0)), float(event.data.get("scale", 0.0))
    if state.opened.active or not limit * DELIBERATE < scale:
        return state
    caller = str(event.data.get("caller", ""))
    return replace(state, opened=state.opened.at(event.step, event.step), caller=caller, limit=limit, scale=scale)


def _conclude(state: State) -> Finding:
    left = state.limit / state.scale
    where = f" at {state.caller}" if state.caller else ""
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title="Gradients are clipped before they are unscaled",
        cause=f"clip_grad_norm_{where} limits gradients that are still multiplied by the scale of "
        f"{words.scale(state.scale)} to a norm of {state.limit:g}; unscaled, a norm of {left:.2g} is left, so the run "
        "hardly learns.",
        fix=f"Call scaler.unscale_(optimizer) before clip_grad_norm_{where}; the limit of {state.limit:g} then holds "
        "for the true gradients.",
        caller=state.caller or None,
        evidence={"max_norm": state.limit, "scale": state.scale, "norm_left": left},
        **found(state.opened),
    )


VERDICT = Verdict(
    id="clip-before-unscale",
    severity="ticket",
    title="Clipping before unscaling",
    question="Are gradients clipped while they are still scaled?",
    columns=(),
    events=("usage.clip_before_unscale",),
    state=State,
    judge=judge,
    explains=("gradient-underflow",),
)
