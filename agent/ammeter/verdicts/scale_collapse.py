"""scale-collapse: step after step is skipped and the scale halves each time, because no scale can help."""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import replace

from ammeter.block import View
from ammeter.verdicts import origin, words
from ammeter.verdicts.finding import Finding, Verdict
from ammeter.verdicts.opened import Opened, changed, found
from ammeter.verdicts.origin import Origin
from ammeter.wire import Event

HANDFUL = 5
"""Skipped steps in a row, at a scale that worked just before, that are no accident: the last of them tried a scale
of 1/16 of it, so a gradient that only needs a smaller scale would have grown 16-fold from one step to the next."""

LOWEST = 1.0
"""Scale below which a fresh scaler that never had a good step is not calibrating any more: at 1 nothing is scaled,
and float16 gradients that still overflow there would overflow without a scaler."""

CALIBRATION = 24
"""Halvings that the calibration of a fresh scaler may take: from 2^40 to torch's own first scale of 2^16."""

RECOVERED = 10
"""Good steps in a row after which the collapse is over."""

INVERSE_INFINITE = 2.0**-128
"""Scale whose inverse is Inf in float32: then good gradients turn NaN while GradScaler finds no Inf."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Opened = Opened()
    worked: float = 0.0
    """Scale of the last applied step."""
    begun: int = -1
    skips: int = 0
    proven: int = 0
    """Skipped steps in a row, and those of them at a scale that had worked."""
    first_scale: float = 0.0
    last_scale: float = 0.0
    backoff: float = 0.5
    applied: int = 0
    origin: Origin = Origin()
    from_scale: float = 0.0
    to_scale: float = 0.0
    had_worked: bool = False
    lost_steps: int = 0
    poisoned: int = -1
    """The last step at which weights were told to hold NaN or Inf: then no skipped step has kept them."""
    good_scale: float = 0.0
    """What had worked, of all of these scales the first."""


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
            state = _skip(state, step, scale)
            if state.skips <= CALIBRATION and (place := origin.of_row(rows, at)):
                state = replace(state, origin=place)
        elif applied > 0:
            state = _applied(state, scale)
    return state


def _quiet(state: State, rows: View) -> State:
    scales = rows.scalar("scale")
    scales = scales[(scales >= 0) & (rows.scalar("applied") > 0)]
    if not scales.size or scales[-1] == state.worked:
        return state
    return replace(state, worked=float(scales[-1]))


def _skip(state: State, step: int, scale: float) -> State:
    if not state.skips:
        state = replace(state, begun=step, first_scale=scale, last_scale=scale, origin=Origin())
    elif 0 < scale < state.last_scale:
        state = replace(state, backoff=scale / state.last_scale)
    proven = state.proven + _had_worked(state, scale)
    state = replace(state, skips=state.skips + 1, proven=proven, last_scale=scale, applied=0)
    if not (state.opened.active or _collapsed(state)):
        return state
    if not state.opened.active:
        good = min(state.first_scale, state.worked)
        state = replace(state, from_scale=state.first_scale, good_scale=good, lost_steps=state.skips - 1)
        state = replace(state, had_worked=_had_worked(state, scale))
    return replace(state, opened=state.opened.at(state.begun, step), to_scale=scale, lost_steps=state.lost_steps + 1)


def _had_worked(state: State, scale: float) -> bool:
    return 0 < scale <= state.worked or (scale == 0 and state.worked > 0)


def _collapsed(state: State) -> bool:
    if state.proven >= HANDFUL:
        return True
    if 0 < state.worked < state.first_scale and state.last_scale < state.first_scale:
        return False  # set too high by hand, it comes down to what worked before
    return state.skips > CALIBRATION or (state.skips >= HANDFUL and state.last_scale <= LOWEST)


def _applied(state: State, scale: float) -> State:
    applied = state.applied + (not scale <= INVERSE_INFINITE)
    worked = scale if scale >= 0 else state.worked
    opened = state.opened.over() if applied >= RECOVERED else state.opened
    return replace(state, opened=opened, worked=worked, skips=0, proven=0, applied=applied if opened.active else 0)


def _event(state: State, event: Event) -> State:
    if event.name == "weights.nonfinite":
        return replace(state, poisoned=event.step)
    told = state.origin.step >= state.begun and state.origin.count
    if not state.skips or told or event.step < state.begun:
        return state
    return replace(state, origin=origin.of_event(event.step, event.data))


def _conclude(state: State) -> Finding:
    opened, place = state.opened, state.origin
    left = _steps_left(state.to_scale, state.backoff)
    held = state.from_scale == state.to_scale
    higher = state.good_scale < state.from_scale
    these, none = ("that scale", "it never") if held else ("the first of these scales", "none of them ever")
    these = words.scale(state.good_scale) if higher else these
    worked = f"although {these} had worked" if state.had_worked else f"and {none} worked"
    course = (
        f"while the scale stayed {words.scale(state.to_scale)}"
        if held
        else f"and the scale fell from {words.scale(state.from_scale)} to {words.scale(state.to_scale)}"
    )
    doom = (
        ""
        if held
        else f" After {words.count(left, 'more such step')} 1/scale is infinite and turns good gradients into NaN."
        if left
        else " Now 1/scale is infinite: it turns good gradients into NaN, and those are applied."
    )
    poisoned = state.poisoned >= opened.first
    stop = f"Stop the run and mend {place.module or 'what makes the gradients non-finite'}"
    hint = "look for an overflow, a division or a missing eps there, or run it in float32"
    before = f", or from {words.earlier(opened.first)}" if opened.first > 0 else ""
    restart = (
        f"The skipped steps left the weights unharmed: go on from them{before}, with a new GradScaler."
        if left and not poisoned
        else f"Restore {words.earlier(opened.first)} and go on with a new GradScaler."
    )
    if poisoned:
        stop = "Stop the run. The weights hold NaN or Inf themselves, and no batch and no scale mends that"
        hint = "look at what the last applied step before did, or for a fault of the memory"
    return Finding(
        verdict=VERDICT.id,
        severity="page",
        title=f"Every step is skipped at a loss scale of {state.to_scale:.6g}"
        if held
        else f"Loss scale collapsed from {state.from_scale:.6g} to {state.to_scale:.3g}",
        cause=f"{state.lost_steps} steps from {opened.first} to {opened.last} were skipped {course}, {worked}: the"
        f" gradients are non-finite {'there' if held else 'at any scale'}.{place.words()}{doom}",
        fix=f"{stop}: {hint}. Do not lower the scale further. {restart}",
        tensor=place.tensor,
        module=place.module,
        evidence={
            "scale_from": state.from_scale,
            "scale_to": state.to_scale,
            "skipped_steps": state.lost_steps,
            "steps_left": left,
            "nonfinite_tensors": place.count,
            "finite_tensors": place.before + place.after,
        },
        **found(opened),
    )


def _steps_left(scale: float, backoff: float) -> int:
    """Skips until the scale, which the skip at `scale` lowers too, is one whose inverse is infinite."""
    if scale <= INVERSE_INFINITE:
        return 0
    return max(0, math.ceil((math.log2(scale) + 128) / -math.log2(backoff)) - 1)


VERDICT = Verdict(
    id="scale-collapse",
    severity="page",
    title="The loss scale collapses",
    question="Is every step skipped although the scale comes down?",
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
