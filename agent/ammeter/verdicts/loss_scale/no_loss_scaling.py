"""no-loss-scaling: float16 autocast trains without a GradScaler, so small gradients become zero."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.float16 import is_half, sampled_rows
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.readings import Readings
from ammeter.verdicts.framework.single_event import MAX_TEXT_CHARS
from ammeter.wire.columns import View, measured
from ammeter.wire.frames import Event, Hello

MIN_STEPS = 10
"""Minimum applied steps without a scaler. They open the verdict if gradients were seen on the float16 grid, or if the
run has other ranks. An existing scaler is used from the first step on."""

UNREAD_STEPS = 50
"""Applied steps that open the verdict without a reading of the gradients: none was read, or the grid is not visible."""


EARLY_STEPS = 8
"""Steps at the beginning that are remembered until autocast is known: the row of the step in which it was entered
precedes the event."""

WITHOUT_SCALER = "usage.fp16_without_scaler"
"""Its context shows an autocast that was entered before Ammeter observed the program, and is still open."""

UNSCALED = "gradient.unscaled_half"
"""Gradients were on the float16 grid after backward(). The program changes them before they are read in full."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    half: bool = False
    """Whether float16 autocast was entered with gradients recorded."""
    scaler: bool = False
    disabled: bool = False
    device: str = ""
    applied: int = 0
    first: int = -1
    grid: bool | None = None
    several: bool = False
    """Whether the run has other ranks: averaging over ranks moves gradients off the grid."""
    early: tuple[int, ...] = ()
    """Applied steps before autocast was known, of the first EARLY_STEPS."""
    is_changed: bool = False
    """Whether the program moves gradients off the grid before they are read."""
    caller: str = ""
    """The line of a backward() in float16."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("hello", "autocast.entered", "scaler.seen", WITHOUT_SCALER, UNSCALED):
        if isinstance(part, View):
            state = _rows(state, part)
        elif isinstance(part, Hello):
            state = replace(state, several=part.world_size > 1)
        elif isinstance(part, Event):
            state = _event(state, part)
    return state, changed(_conclude, before, state)


def _event(state: State, event: Event) -> State:
    data = event.data
    if event.name == "scaler.seen":
        return _scaled(state) if data.get("enabled") else replace(state, disabled=True)
    if event.name == WITHOUT_SCALER and data.get("caller"):
        state = replace(state, caller=str(data["caller"])[:MAX_TEXT_CHARS])
    if event.name == UNSCALED:
        return replace(state, grid=True, is_changed=True)
    is_open = event.name == WITHOUT_SCALER and data.get("autocast") is True
    if is_open or (data.get("dtype") == "float16" and data.get("grad")):
        return _entered(replace(state, half=True, device=str(data.get("device", ""))), event.step)
    return state


def _entered(state: State, step: int) -> State:
    """Counts the steps since `step` whose rows came before the event."""
    early = () if state.scaler else state.early
    state = replace(state, early=())
    for applied in early:
        state = _applied(state, applied) if applied >= step else state
    return state


def _scaled(state: State) -> State:
    return replace(state, scaler=True, opened=state.opened.over())


def _rows(state: State, rows: View) -> State:
    if state.scaler:
        return state
    scaled = np.flatnonzero(measured(rows.scalar("scale")))
    if scaled.size:
        return _scaled(_unscaled(state, rows.rows(0, int(scaled[0]))))
    return _unscaled(state, rows)


def _unscaled(state: State, rows: View) -> State:
    if not state.half:
        return _early(state, rows)
    is_read = not (state.opened.active or state.several or state.is_changed)
    sampled = set(sampled_rows(rows).tolist()) if is_read else set()
    for at, (step, (applied,)) in enumerate(rows.records("applied")):
        if at in sampled and (answer := is_half(rows, at)) is not None:
            state = replace(state, grid=answer)
        if applied > 0:
            state = _applied(state, step)
    return state


def _early(state: State, rows: View) -> State:
    if not len(rows) or int(rows.steps[0]) >= EARLY_STEPS:
        return state
    steps = rows.steps[(rows.scalar("applied") > 0) & (rows.steps < EARLY_STEPS)].tolist()
    return replace(state, early=(*state.early, *steps)) if steps else state


def _applied(state: State, step: int) -> State:
    first = step if state.first < 0 else state.first
    state = replace(state, applied=state.applied + 1, first=first)
    settled = state.grid if state.grid is not None else state.applied >= (MIN_STEPS if state.several else UNREAD_STEPS)
    if state.opened.active or (settled and state.applied >= MIN_STEPS):
        return replace(state, opened=state.opened.at(first, step))
    return state


def _conclude(state: State) -> Finding:
    device = state.device or "cuda"
    scaler = f"torch.amp.GradScaler('{device}')"
    at = f" at {state.caller}" if state.caller else ""
    unused = " A GradScaler exists, but it is disabled: scale(), unscale_() and step() then do not scale or check."
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title="float16 autocast without an enabled GradScaler: small gradients become zero",
        cause=f"The run trains in float16 autocast on {device} without an enabled GradScaler, so gradients below 2^-24"
        f" become zero and those below 2^-14 lose precision. {_applied_steps(state)}{unused if state.disabled else ''}",
        fix=f"Create scaler = {scaler} once, before the training loop. In each step replace loss.backward(){at} by"
        " scaler.scale(loss).backward(), and optimizer.step() by scaler.step(optimizer); scaler.update(). Or use"
        " dtype=torch.bfloat16 in autocast, which needs no scaler.",
        caller=state.caller or None,
        evidence=_evidence(state, device),
        **lifecycle_fields(state.opened),
    )


def _evidence(state: State, device: str) -> dict[str, Any]:
    return {
        "device": device,
        "steps_without_scaler": state.applied,
        "gradients_on_float16_grid": state.grid,
        "scaler_disabled": state.disabled,
    }


def _applied_steps(state: State) -> str:
    were = "was" if state.applied == 1 else "were"
    return f"{wording.count(state.applied, 'step')} {were} applied in this way since step {state.first}."


VERDICT = Verdict(
    id="no-loss-scaling",
    severity="ticket",
    title="No loss scaling",
    question="Does float16 autocast train without an enabled GradScaler?",
    columns=("scale", "applied", "grad_absmax", "grad.fp16_grid"),
    events=("autocast.entered", "scaler.seen", WITHOUT_SCALER, UNSCALED),
    needs=(Readings("applied", MIN_STEPS),),
    applies=lambda facts: facts.precision == "float16" and not facts.has_scale,
    state=State,
    judge=judge,
    explains=("gradient-underflow", "stagnation"),
)
