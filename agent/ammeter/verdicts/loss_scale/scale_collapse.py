"""scale-collapse: consecutive steps are skipped and the scale halves, because no scale can help."""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.framework import gradient_frontier, wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.gradient_frontier import Origin
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.scale_limits import INVERSE_INFINITE_SCALE, MAX_ACCIDENTAL_SKIPS, MIN_USEFUL_SCALE
from ammeter.wire.columns import View
from ammeter.wire.frames import Event

CALIBRATION_SKIPS = 24
"""Maximum halvings in the calibration of a new scaler: from 2^40 to torch's own first scale of 2^16."""

RECOVERED_STEPS = 10
"""Good steps in a row that close the verdict."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    applied_scale: float = 0.0
    """Scale of the last applied step."""
    first_skip: int = -1
    skips: int = 0
    unexpected_skips: int = 0
    """`skips`: skipped steps in a row. `unexpected_skips`: those of them at a scale that had worked."""
    first_scale: float = 0.0
    last_scale: float = 0.0
    backoff: float = 0.5
    applied: int = 0
    frontier: Origin = Origin()
    from_scale: float = 0.0
    to_scale: float = 0.0
    had_been_applied: bool = False
    lost_steps: int = 0
    weights_nonfinite: int = -1
    """Last step with a report of NaN or Inf in the weights. Skipping steps has then not protected the weights."""
    good_scale: float = 0.0
    """The first scale of this collapse that had worked before."""
    highest: float = 0.0
    """Highest scale of an applied step so far."""
    lowest: float = math.inf
    """Lowest scale of the skipped steps of this collapse."""
    partly_applied: int = 0
    """Number of these steps that another optimizer applied."""
    resumed: int = -1
    """First applied step after the collapse. `resumed_scale` is its scale."""
    resumed_scale: float = math.nan


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
    records = rows.records("skipped", "applied", "scale")
    for at, (step, (skips, applied, scale)) in enumerate(records):
        if skips > 0 and scale >= 0:
            state = _skip(state, step, scale, applied > 0)
            if state.skips <= CALIBRATION_SKIPS and (place := gradient_frontier.of_row(rows, at)):
                state = replace(state, frontier=place)
        elif applied > 0:
            state = _applied(state, step, scale)
    return state


def _quiet(state: State, rows: View) -> State:
    scales = rows.scalar("scale")
    scales = scales[(scales >= 0) & (rows.scalar("applied") > 0)]
    if not scales.size or (scales[-1] == state.applied_scale and scales.max() <= state.highest):
        return state
    return replace(state, applied_scale=float(scales[-1]), highest=max(state.highest, float(scales.max())))


def _skip(state: State, step: int, scale: float, partly_applied: bool) -> State:
    if not state.skips:
        state = replace(state, first_skip=step, first_scale=scale, last_scale=scale, frontier=Origin())
        if not state.opened.active:
            state = replace(state, lowest=math.inf, partly_applied=0)
    elif 0 < scale < state.last_scale:
        state = replace(state, backoff=scale / state.last_scale)
    unexpected_skips = state.unexpected_skips + _had_been_applied(state, scale)
    state = replace(
        state, skips=state.skips + 1, unexpected_skips=unexpected_skips, last_scale=scale, applied=0, resumed=-1
    )
    state = replace(
        state,
        lowest=min(state.lowest, scale),
        partly_applied=state.partly_applied + partly_applied,
        resumed_scale=math.nan,
    )
    if not (state.opened.active or _collapsed(state)):
        return state
    if not state.opened.active:
        good = min(state.first_scale, state.applied_scale)
        state = replace(state, from_scale=state.first_scale, good_scale=good, lost_steps=state.skips - 1)
        state = replace(state, had_been_applied=_had_been_applied(state, scale))
    return replace(
        state, opened=state.opened.at(state.first_skip, step), to_scale=scale, lost_steps=state.lost_steps + 1
    )


def _had_been_applied(state: State, scale: float) -> bool:
    return 0 < scale <= state.applied_scale or (scale == 0 and state.applied_scale > 0)


def _collapsed(state: State) -> bool:
    if state.unexpected_skips >= MAX_ACCIDENTAL_SKIPS:
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
    )


def _event(state: State, event: Event) -> State:
    if event.name == "weights.nonfinite":
        return replace(state, weights_nonfinite=event.step)
    known = state.frontier.step >= state.first_skip and state.frontier.count
    if not state.skips or known or event.step < state.first_skip:
        return state
    return replace(state, frontier=gradient_frontier.of_event(event.step, event.data))


def _conclude(state: State) -> Finding:
    opened, place = state.opened, state.frontier
    left = _steps_left(state.to_scale, state.backoff)
    constant = state.from_scale == state.to_scale
    resumed = state.resumed >= 0
    return Finding(
        verdict=VERDICT.id,
        severity="page",
        title=_title(state, constant),
        cause=f"GradScaler skipped {state.lost_steps} steps from {opened.first} to {opened.last} because their"
        f" gradients contained NaN or Inf{_scales(state, constant)}. {_before(state, constant)}"
        f"{_after(state)}{place.words()}{_outlook(state, constant, left)}",
        fix=_fix(state, left),
        tensor=place.tensor,
        module=place.module,
        evidence={
            "scale_from": state.from_scale,
            "scale_to": state.to_scale,
            "lowest_failed_scale": state.lowest,
            "skipped_steps": state.lost_steps,
            "steps_applied": state.partly_applied,
            "applied_again_at_step": state.resumed if resumed else None,
            "applied_again_at_scale": state.resumed_scale if resumed and state.resumed_scale >= 0 else None,
            "weights_nonfinite_at_step": state.weights_nonfinite if state.weights_nonfinite >= opened.first else None,
            "steps_left": left,
            "nonfinite_tensors": place.count,
            "finite_tensors": place.before + place.after,
        },
        **lifecycle_fields(opened),
    )


def _title(state: State, constant: bool) -> str:
    if not constant:
        return f"Loss scale collapsed from {state.from_scale:.6g} to {state.to_scale:.3g}"
    resumed = state.resumed >= 0
    steps = f"Every step from {state.opened.first} to {state.opened.last} was" if resumed else "Every step is"
    return f"{steps} skipped at a loss scale of {state.to_scale:.6g}"


def _scales(state: State, constant: bool) -> str:
    if constant:
        return f", while the loss scale stayed {wording.scale(state.to_scale)}"
    return f", so the loss scale fell from {wording.scale(state.from_scale)} to {wording.scale(state.to_scale)}"


def _before(state: State, constant: bool) -> str:
    """Describes how these scales performed before."""
    if state.had_been_applied:
        higher = state.good_scale < state.from_scale
        known = wording.scale(state.good_scale) if higher else "this scale" if constant else "the first of these scales"
        worked = "had worked" if state.good_scale > INVERSE_INFINITE_SCALE else "had been used in an applied step"
        return f"Before, {known} {worked}."
    return "It began above the scale of the last applied step." if state.highest else "No step was applied before."


def _after(state: State) -> str:
    """Describes the scales of the failures, and whether a lower scale helped."""
    if state.resumed >= 0:
        again = f" Steps are applied again since step {state.resumed}"
        if state.resumed_scale < state.lowest:
            return (
                f"{again}, at a scale of {wording.scale(state.resumed_scale)}, so either the gradients overflow above"
                " it, or the bad batches have passed."
            )
        return f"{again}, so the bad batches have passed."
    if state.lowest <= MIN_USEFUL_SCALE:
        return f" The gradients are non-finite at any scale that was tried, down to {wording.scale(state.lowest)}."
    if state.weights_nonfinite >= state.opened.first:
        return f" The weights contain NaN or Inf, read at step {state.weights_nonfinite}."
    return " An overflow is still possible: no step has failed at a scale of 1 or less."


def _outlook(state: State, constant: bool, left: int) -> str:
    """Describes the effect of a further falling scale."""
    if constant or state.resumed >= 0:
        return ""
    if left:
        return (
            f" After {wording.count(left, 'more skipped step')} 1/scale becomes infinite, and unscale_ turns finite"
            " gradients into NaN."
        )
    return " 1/scale is infinite now: unscale_ turns finite gradients into NaN, and GradScaler does not skip that."


def _fix(state: State, left: int) -> str:
    opened, place = state.opened, state.frontier
    first = opened.first
    if state.weights_nonfinite >= first:
        return (
            "Stop the run: the weights contain NaN or Inf themselves, which neither another batch nor a lower scale"
            f" repairs. {_restart(state, left)} Check the last applied step before that for the reason, then the memory"
            " of the host and the GPU."
        )
    repair = (
        f"fix {place.module or 'the operation that makes the gradients non-finite'}: check it for an overflow, a"
        " division or a missing eps, or run it in float32"
    )
    if state.resumed >= 0:
        return (
            f"Run one batch of the steps from {first} to {opened.last} with GradScaler(init_scale=1). If its gradients"
            f" are finite, it was an overflow and the lower scale is right; if not, {repair}."
        )
    if state.lowest > MIN_USEFUL_SCALE:
        return (
            "Check whether steps are applied again before the scale has fallen to 1: then it was an overflow. If not,"
            f" stop the run and {repair}. {_restart(state, left)}"
        )
    return f"Stop the run and {repair}. Do not lower the scale further. {_restart(state, left)}"


def _restart(state: State, left: int) -> str:
    first = state.opened.first
    if state.weights_nonfinite >= first or not left:
        return f"Restore {wording.earlier(first)} and continue with a new GradScaler."
    if state.partly_applied:
        return (
            f"One optimizer stepped while another was skipped: restore {wording.earlier(first)} and use a new"
            " GradScaler."
        )
    before = f", or from {wording.earlier(first)}" if first > 0 else ""
    return f"The skipped steps changed no weight: continue from the current weights{before}, with a new GradScaler."


def _steps_left(scale: float, backoff: float) -> int:
    """Returns the number of skips until the inverse of the scale is infinite.

    The skip at `scale` also lowers the scale.
    """
    if scale <= INVERSE_INFINITE_SCALE:
        return 0
    return max(0, math.ceil((math.log2(scale) + 128) / -math.log2(backoff)) - 1)


VERDICT = Verdict(
    id="scale-collapse",
    severity="page",
    title="The loss scale collapses",
    question="Is every step skipped although the loss scale falls?",
    columns=("skipped", "applied", "scale", "grad.norm", "grad.infs"),
    events=("gradient.nonfinite", "weights.nonfinite"),
    state=State,
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
