"""scale-collapse: consecutive steps are skipped and the scale halves, because no scale can help."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework import gradient_frontier
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.gradient_frontier import Origin
from ammeter.verdicts.framework.learning_rates import stating
from ammeter.verdicts.framework.lifecycle import changed, lifecycle_fields
from ammeter.verdicts.framework.scale_limits import INVERSE_INFINITE_SCALE, MAX_ACCIDENTAL_SKIPS, MIN_USEFUL_SCALE
from ammeter.verdicts.loss_scale import collapse_wording
from ammeter.verdicts.loss_scale.collapse_state import State
from ammeter.wire.columns import Floats, View
from ammeter.wire.frames import Event

CALIBRATION_SKIPS = 24
"""Maximum halvings in the calibration of a new scaler: from 2^40 to torch's own first scale of 2^16."""

RECOVERED_STEPS = 10
"""Good steps in a row that close the verdict."""


@partial(stating, matters=lambda state: not state.at_any_scale)
def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts(*VERDICT.events):
        if isinstance(part, View):
            state = _rows(state, part)
        elif isinstance(part, Event):
            state = _event(state, part)
    return state, changed(_conclude, before, state)


def _rows(state: State, rows: View) -> State:
    skipped = rows.scalar("skipped") > 0
    if not state.skips and not state.opened.active and not skipped.any():
        return _quiet(state, rows)
    losses = np.abs(rows.loss().astype(np.float64))
    records = rows.records("skipped", "applied", "scale")
    for at, (step, (skips, applied, scale)) in enumerate(records):
        if skips > 0 and scale >= 0:
            state = _skip(_with_rise(state, float(losses[at])), step, scale, applied > 0)
            if state.skips <= CALIBRATION_SKIPS and (place := gradient_frontier.of_row(rows, at)):
                state = _with_place(state, place)
        elif applied > 0:
            state = _with_losses(_applied(state, step, scale), losses[at : at + 1])
    return state


def _with_losses(state: State, losses: Floats) -> State:
    """Updates the level from the |loss| of applied steps."""
    finite = losses[np.isfinite(losses)]
    highest = float(finite.max()) if finite.size else 0.0
    return replace(state, loss_level=highest) if highest > state.loss_level else state


def _with_rise(state: State, loss: float) -> State:
    """Processes the |loss| of a skipped step: a larger loss, as of a new objective, has larger gradients."""
    rise = 0.0 if not state.skips else state.loss_rise
    if math.isfinite(loss) and loss > state.loss_level > 0:
        rise = max(rise, math.log2(loss / state.loss_level))
    return replace(state, loss_rise=rise) if rise != state.loss_rise else state


def _quiet(state: State, rows: View) -> State:
    scales, applied = rows.scalar("scale"), rows.scalar("applied") > 0
    state = _with_losses(state, np.abs(rows.loss()[applied]))
    scales = scales[(scales >= 0) & applied]
    if not scales.size or (scales[-1] == state.applied_scale and scales.max() <= state.highest):
        return state
    return replace(state, applied_scale=float(scales[-1]), highest=max(state.highest, float(scales.max())))


def _skip(state: State, step: int, scale: float, partly_applied: bool) -> State:
    state = _with_row(state, step, scale, partly_applied)
    if not state.opened.active:
        return _opened(state, step, scale) if _collapsed(state) else state
    if state.resumed >= 0 and not state.applied_between:
        state = replace(state, between_step=state.resumed, between_scale=state.resumed_scale)
    return replace(
        state,
        opened=state.opened.at(state.first_skip, step),
        to_scale=scale,
        lowest=min(state.lowest, scale),
        lost_steps=state.lost_steps + 1,
        partly_applied=state.partly_applied + partly_applied,
        applied_between=state.applied_after,
        resumed=-1,
        resumed_scale=math.nan,
    )


def _with_row(state: State, step: int, scale: float, partly_applied: bool) -> State:
    """Updates the present row of skipped steps."""
    if scale > state.last_scale and not state.opened.active:  # the program raises it: no collapse yet
        state = replace(state, skips=0, unexpected_skips=0)
    if not state.skips:
        state = replace(state, first_skip=step, first_scale=scale, last_scale=scale)
        state = replace(state, row_partly_applied=0, row_frontier=Origin())
    elif 0 < scale < state.last_scale:
        state = replace(state, backoff=scale / state.last_scale)
    return replace(
        state,
        skips=state.skips + 1,
        unexpected_skips=state.unexpected_skips + _had_been_applied(state, scale),
        last_scale=scale,
        applied=0,
        row_partly_applied=state.row_partly_applied + partly_applied,
    )


def _opened(state: State, step: int, scale: float) -> State:
    """Opens the finding with the present row of skipped steps, in which the scale has not risen."""
    return replace(
        state,
        opened=state.opened.at(state.first_skip, step),
        from_scale=state.first_scale,
        to_scale=scale,
        lowest=scale,
        good_scale=min(state.first_scale, state.applied_scale),
        had_been_applied=_had_been_applied(state, scale),
        lost_steps=state.skips,
        partly_applied=state.row_partly_applied,
        frontier=state.row_frontier,
        applied_after=0,
        applied_between=0,
        resumed=-1,
        resumed_scale=math.nan,
    )


def _had_been_applied(state: State, scale: float) -> bool:
    return 0 < scale <= state.applied_scale or (scale == 0 and state.applied_scale > 0)


def _collapsed(state: State) -> bool:
    if state.unexpected_skips >= MAX_ACCIDENTAL_SKIPS + state.loss_rise:
        return True
    if 0 < state.applied_scale < state.first_scale and state.last_scale < state.first_scale:
        return False  # a scale set too high by hand returns to a working value
    useless = state.skips >= MAX_ACCIDENTAL_SKIPS and state.last_scale <= MIN_USEFUL_SCALE
    return useless or state.skips > CALIBRATION_SKIPS


def _applied(state: State, step: int, scale: float) -> State:
    applied = state.applied + (not scale <= INVERSE_INFINITE_SCALE)
    applied_scale = scale if scale >= 0 else state.applied_scale
    opened = state.opened.over() if applied >= RECOVERED_STEPS else state.opened
    if state.opened.active and state.resumed < 0:
        state = replace(state, resumed=step, resumed_scale=scale)
    state = replace(state, highest=max(state.highest, applied_scale))
    return replace(
        state,
        opened=opened,
        applied_scale=applied_scale,
        skips=0,
        unexpected_skips=0,
        applied=applied if opened.active else 0,
        applied_after=state.applied_after + state.opened.active,
    )


def _with_place(state: State, place: Origin) -> State:
    return replace(state, row_frontier=place, frontier=place if state.opened.active else state.frontier)


def _event(state: State, event: Event) -> State:
    if event.name == "scaler.seen":
        state = replace(state, several=True) if event.data.get("scaler") else state
        return replace(state, own=True) if event.data.get("own") else state
    if event.name == "weights.nonfinite":
        return replace(state, weights_nonfinite=event.step)
    known = state.row_frontier.step >= state.first_skip and state.row_frontier.count
    if not state.skips or known or event.step < state.first_skip:
        return state
    return _with_place(state, gradient_frontier.of_event(event.step, event.data))


def _conclude(state: State) -> Finding:
    opened, place = state.opened, state.frontier
    return Finding(
        verdict=VERDICT.id,
        severity="page",
        title=collapse_wording.title(state),
        cause=collapse_wording.cause(state),
        fix=collapse_wording.fix(state),
        tensor=place.tensor,
        module=place.module,
        evidence=_evidence(state),
        **lifecycle_fields(opened),
    )


def _evidence(state: State) -> dict[str, Any]:
    place, resumed = state.frontier, state.first_applied >= 0
    return {
        "scale_from": state.from_scale,
        "scale_to": state.to_scale,
        "lowest_failed_scale": state.lowest,
        "skipped_steps": state.lost_steps,
        "steps_applied": state.partly_applied,
        "applied_again_at_step": state.first_applied if resumed else None,
        "applied_again_at_scale": state.first_applied_scale if resumed and state.first_applied_scale >= 0 else None,
        "steps_applied_between": state.applied_between,
        "weights_nonfinite_at_step": state.weights_nonfinite if state.weights_nonfinite >= state.opened.first else None,
        "steps_left": state.steps_left,
        "nonfinite_tensors": place.count,
        "finite_tensors": place.before + place.after,
    }


VERDICT = Verdict(
    id="scale-collapse",
    severity="page",
    title="The loss scale collapses",
    question="Is every step skipped although the loss scale falls?",
    columns=("skipped", "applied", "scale", "loss", "loss_backward", "grad.norm", "grad.infs", "optimizer_lr"),
    events=("gradient.nonfinite", "weights.nonfinite", "scaler.seen"),
    state=State,
    history=("scale", "skipped", "applied"),
    judge=judge,
    explains=(
        "gradient-underflow",
        "nonfinite-loss",
        "nonfinite-gradient",
        "nonfinite-weights",
        "scale-underflowed",
        "lopsided-step",
        "scheduler-ahead",
    ),
)
