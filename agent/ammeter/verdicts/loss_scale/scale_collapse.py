"""scale-collapse: consecutive steps are skipped and the scale halves, because no scale can help."""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.framework import gradient_frontier as origin
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.gradient_frontier import Origin
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.scale_limits import INVERSE_INFINITE_SCALE, MAX_ACCIDENTAL_SKIPS, MIN_USEFUL_SCALE
from ammeter.wire.columns import View
from ammeter.wire.frames import Event

CALIBRATION = 24
"""Maximum halvings in the calibration of a new scaler: from 2^40 to torch's own first scale of 2^16."""

RECOVERED = 10
"""Good steps in a row that close the verdict."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    worked: float = 0.0
    """Scale of the last applied step."""
    begun: int = -1
    skips: int = 0
    proven: int = 0
    """`skips`: skipped steps in a row. `proven`: those of them at a scale that had worked."""
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
    """Last step with a report of NaN or Inf in the weights. Skipping steps has then not protected the weights."""
    good_scale: float = 0.0
    """The first scale of this collapse that had worked before."""
    highest: float = 0.0
    """Highest scale of an applied step so far."""
    lowest: float = math.inf
    """Lowest scale of the skipped steps of this collapse."""
    parted: int = 0
    """Number of these steps that another optimizer applied."""
    back: int = -1
    """First applied step after the collapse. `back_scale` is its scale."""
    back_scale: float = math.nan


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
            if state.skips <= CALIBRATION and (place := origin.of_row(rows, at)):
                state = replace(state, origin=place)
        elif applied > 0:
            state = _applied(state, step, scale)
    return state


def _quiet(state: State, rows: View) -> State:
    scales = rows.scalar("scale")
    scales = scales[(scales >= 0) & (rows.scalar("applied") > 0)]
    if not scales.size or (scales[-1] == state.worked and scales.max() <= state.highest):
        return state
    return replace(state, worked=float(scales[-1]), highest=max(state.highest, float(scales.max())))


def _skip(state: State, step: int, scale: float, parted: bool) -> State:
    if not state.skips:
        state = replace(state, begun=step, first_scale=scale, last_scale=scale, origin=Origin())
        if not state.opened.active:
            state = replace(state, lowest=math.inf, parted=0)
    elif 0 < scale < state.last_scale:
        state = replace(state, backoff=scale / state.last_scale)
    proven = state.proven + _had_worked(state, scale)
    state = replace(state, skips=state.skips + 1, proven=proven, last_scale=scale, applied=0, back=-1)
    state = replace(state, lowest=min(state.lowest, scale), parted=state.parted + parted, back_scale=math.nan)
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
    if state.proven >= MAX_ACCIDENTAL_SKIPS:
        return True
    if 0 < state.worked < state.first_scale and state.last_scale < state.first_scale:
        return False  # a scale set too high by hand returns to a working value
    return state.skips > CALIBRATION or (state.skips >= MAX_ACCIDENTAL_SKIPS and state.last_scale <= MIN_USEFUL_SCALE)


def _applied(state: State, step: int, scale: float) -> State:
    applied = state.applied + (not scale <= INVERSE_INFINITE_SCALE)
    worked = scale if scale >= 0 else state.worked
    opened = state.opened.over() if applied >= RECOVERED else state.opened
    if state.opened.active and state.back < 0:
        state = replace(state, back=step, back_scale=scale)
    state = replace(state, highest=max(state.highest, worked))
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
    course = (
        f"while the scale stayed {wording.scale(state.to_scale)}"
        if held
        else f"and the scale fell from {wording.scale(state.from_scale)} to {wording.scale(state.to_scale)}"
    )
    return Finding(
        verdict=VERDICT.id,
        severity="page",
        title=_title(state, held),
        cause=f"{state.lost_steps} steps from {opened.first} to {opened.last} were skipped {course},"
        f" {_worked(state, held)}: {_nonfinite(state, held)}.{place.words()}{_doom(state, held, left)}",
        fix=_fix(state, left),
        tensor=place.tensor,
        module=place.module,
        evidence={
            "scale_from": state.from_scale,
            "scale_to": state.to_scale,
            "lowest_failed_scale": state.lowest,
            "skipped_steps": state.lost_steps,
            "steps_applied": state.parted,
            "applied_again_at_step": state.back if state.back >= 0 else None,
            "applied_again_at_scale": state.back_scale if state.back >= 0 and state.back_scale >= 0 else None,
            "weights_nonfinite_at_step": state.poisoned if state.poisoned >= opened.first else None,
            "steps_left": left,
            "nonfinite_tensors": place.count,
            "finite_tensors": place.before + place.after,
        },
        **lifecycle_fields(opened),
    )


def _title(state: State, held: bool) -> str:
    if not held:
        return f"Loss scale collapsed from {state.from_scale:.6g} to {state.to_scale:.3g}"
    steps = f"Every step from {state.opened.first} to {state.opened.last} was" if state.back >= 0 else "Every step is"
    return f"{steps} skipped at a loss scale of {state.to_scale:.6g}"


def _worked(state: State, held: bool) -> str:
    """Describes how these scales performed before."""
    if state.had_worked:
        higher = state.good_scale < state.from_scale
        these = wording.scale(state.good_scale) if higher else "that scale" if held else "the first of these scales"
        applied = "had worked" if state.good_scale > INVERSE_INFINITE_SCALE else "had been applied with"
        return f"although {these} {applied}"
    return "and no step was applied before" if not state.highest else "higher than where steps were applied last"


def _nonfinite(state: State, held: bool) -> str:
    """Describes the scales of the failures, and whether a lower scale helped."""
    if state.back >= 0:
        again = f"steps are applied again since step {state.back}"
        if state.back_scale < state.lowest:
            return (
                f"{again}, at a scale of {wording.scale(state.back_scale)}, so either the gradients overflow above it,"
                " or what was wrong with those batches has passed"
            )
        return f"{again}, so what was wrong with those batches has passed"
    if state.lowest <= MIN_USEFUL_SCALE:
        return "the gradients are non-finite at any scale that was tried, down to " + wording.scale(state.lowest)
    return f"the gradients are non-finite {'there' if held else 'at each of these scales'}"


def _doom(state: State, held: bool, left: int) -> str:
    """Describes the effect of a further falling scale."""
    if held or state.back >= 0:
        return ""
    if left:
        return f" After {wording.count(left, 'more such step')} 1/scale is infinite and turns good gradients into NaN."
    return " Now 1/scale is infinite: it turns good gradients into NaN, which GradScaler does not skip."


def _fix(state: State, left: int) -> str:
    opened, place = state.opened, state.origin
    first = opened.first
    poisoned = state.poisoned >= first
    hint = "look for an overflow, a division or a missing eps there, or run it in float32"
    mend = f"mend {place.module or 'what makes the gradients non-finite'}: {hint}"
    before = f", or from {wording.earlier(first)}" if first > 0 else ""
    restart = (
        f"Restore {wording.earlier(first)} and go on with a new GradScaler."
        if poisoned or not left
        else f"One optimizer stepped while another was skipped: restore {wording.earlier(first)}, with a new"
        " GradScaler."
        if state.parted
        else f"The skipped steps changed no weight: go on from there{before}, with a new GradScaler."
    )
    if poisoned:
        return (
            "Stop the run. The weights hold NaN or Inf themselves, and no batch and no scale mends that: look at what"
            f" the last applied step before did, or for a fault of the memory. {restart}"
        )
    if state.back >= 0:
        return (
            f"Run one of the batches of the steps from {first} to {opened.last} at init_scale=1. If its gradients are"
            f" finite there, it was an overflow and the lower scale is right; if not, {mend}."
        )
    if state.lowest > MIN_USEFUL_SCALE:
        return (
            f"See whether steps are applied before the scale has come down to 1: then it was an overflow. If not, stop"
            f" the run and {mend}. {restart}"
        )
    return f"Stop the run and {mend}. Do not lower the scale further. {restart}"


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
