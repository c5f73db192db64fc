"""nonfinite-gradient: gradients are NaN or Inf although the loss is finite and the loss scale is not the reason."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.block import Mask, View, measured
from ammeter.verdicts import origin, room, words
from ammeter.verdicts.finding import Finding, Verdict
from ammeter.verdicts.opened import Opened, changed, found
from ammeter.verdicts.origin import Origin
from ammeter.verdicts.room import Room
from ammeter.verdicts.scale_collapse import HANDFUL, INVERSE_INFINITE, LOWEST
from ammeter.wire import Event

ROOM_BITS = 6
"""Room below the load that gradients bear, for an Inf at a scale that had worked to be no overflow: the gradient would
have to be 64 times that of the steps before, or those inside the network 64 times those of its weights. Of 120
overflows provoked in GPTs, encoders and perceptrons of 4 to 16 layers by a growth_interval of 12, none had more than 1
bit, and every one showed an Inf: an overflow makes that first."""

NAN_ROOM_BITS = 3
"""Room for NaN without any Inf: an overflow inside of a softmax's backward pass reaches the weights only as the NaN of
Inf - Inf, also at the scale that a run began with and that had worked for some steps. Of 170 provoked in convolutional
networks with attention pooling, 30 showed NaN alone, with 2.3 bits at most. Each skip gives a bit: NaN that stays is
told three steps later."""

OFTEN, WITHIN = 3, 10
"""Bad steps within so many steps, or two in a row, that wake a person though every one was skipped."""

RECOVERED = 50
"""Good steps after which it is over."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Opened = Opened()
    room: Room = Room()
    begun: int = -1
    series: int = 0
    proven: int = 0
    """Skipped steps in a row, those of them at a scale that had worked, and the step with which they began."""
    waiting: int = -1
    """A bad step whose place is one tensor, or whose Inf had room: a finding if the run recovers, else scale-collapse
    has it."""
    nan_overflows: bool = False
    """Whether a scale that was too high gave NaN without Inf in this run, or update() is called between two optimizers,
    so that the Inf may be in what the second one is still to step on: then that is no sign here."""
    scale: float = math.nan
    recent: tuple[int, ...] = ()
    bad: int = 0
    applied: int = 0
    page: bool = False
    finite: int = 0
    room_bits: float = 0.0
    origin: Origin = Origin()


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts(*VERDICT.events):
        if isinstance(part, View):
            state = _rows(state, part)
        elif isinstance(part, Event) and part.name == "usage.update_between_optimizers":
            state = replace(state, nan_overflows=True)
        elif isinstance(part, Event) and state.opened.last == part.step and not state.origin.count:
            state = replace(state, origin=origin.of_event(part.step, part.data))
    return state, changed(_conclude, before, state)


def _rows(state: State, rows: View) -> State:
    bad = _bad_rows(rows)
    if not (state.series or state.opened.active or state.room.overflowed or bad.any()):
        after = room.all_good(state.room, rows)
        return state if after is state.room else replace(state, room=after)
    losses = rows.scalar("loss")
    loss_bad = measured(losses) & ~np.isfinite(losses)
    records = rows.records("scale", "applied", "skipped", "grad_norm", "grad_absmax")
    for at, (step, (scale, applied, skipped, norm, absmax)) in enumerate(records):
        if not bad[at]:
            state = _good(state, step, scale, norm, absmax) if applied > 0 else state
        elif not loss_bad[at]:
            place = origin.of_row(rows, at) or Origin()
            unprotected = applied > 0 and not skipped > 0
            state = _scaled(state, step, scale, place) if skipped > 0 else _open(state, step, place, unprotected)
    return state


def _bad_rows(rows: View) -> Mask:
    norms, elements = rows.scalar("grad_norm"), rows.scalar("grad_nonfinite")
    broken = measured(norms) & ~np.isfinite(norms) & ~(elements == 0)
    found: Mask = broken | (elements > 0) | (rows.scalar("skipped") > 0)
    return found


def _good(state: State, step: int, scale: float, norm: float, absmax: float) -> State:
    if state.waiting >= 0 and state.series < HANDFUL:
        state = _open(state, state.waiting, state.origin, unprotected=False, reached=step)
    after = room.good(state.room, step, scale, norm, absmax)
    opened = state.opened.over() if state.finite + 1 >= RECOVERED else state.opened
    finite = state.finite + 1 if opened.active else 0
    return replace(state, room=after, series=0, proven=0, waiting=-1, finite=finite, opened=opened)


def _scaled(state: State, step: int, scale: float, place: Origin) -> State:
    """A step that the scaler skipped: is the scale the reason, or would it have had room?"""
    if 0 <= scale <= INVERSE_INFINITE:  # unscaling itself makes NaN of every gradient there
        return state
    state = replace(state, begun=state.begun if state.series else step, series=state.series + 1)
    only_nan = place.count > 0 and not place.inf
    spread = place.handed_on or place.everywhere
    proven = 0 < scale <= state.room.worked
    state = replace(state, proven=state.proven + proven)
    hopeless = state.proven >= HANDFUL or (state.series >= HANDFUL and scale <= LOWEST)
    if spread and hopeless:
        return _open(_seen(state, scale, 0.0), step, place, unprotected=False)
    if not proven:
        told = state.nan_overflows or only_nan
        return replace(state, nan_overflows=told, room=room.overflow(state.room, scale))
    bits = state.room.bits(scale)
    if bits < _room_needed(state, only_nan):
        return state
    if only_nan and spread:
        return _open(_seen(state, scale, bits), step, place, unprotected=False)
    return replace(_seen(state, scale, bits), waiting=step, origin=place) if state.waiting < 0 else state


def _room_needed(state: State, only_nan: bool) -> float:
    """In bits, for it to be no overflow."""
    if state.nan_overflows or not only_nan:
        return ROOM_BITS
    return NAN_ROOM_BITS if state.room.norm > 0 else -math.inf


def _seen(state: State, scale: float, bits: float) -> State:
    """Keeps what spoke for it the first time."""
    return state if state.opened.active else replace(state, scale=scale, room_bits=bits)


def _open(state: State, step: int, place: Origin, unprotected: bool, reached: int | None = None) -> State:
    """step: the bad one. reached: the step at which that is known, if it is a later one."""
    fresh = not state.opened.active
    recent = (() if fresh else state.recent) + (step,)
    recent = tuple(each for each in recent if step - each < WITHIN)[-OFTEN:]
    often = len(recent) >= OFTEN or (len(recent) > 1 and recent[-2] == step - 1) or state.series >= HANDFUL
    opened = state.opened.at(state.begun if state.series else step, step)
    return replace(
        state,
        opened=replace(opened, step=reached) if fresh and reached is not None else opened,
        recent=recent,
        bad=max(1, state.series) if fresh else state.bad + 1,
        applied=int(unprotected) if fresh else state.applied + unprotected,
        page=unprotected or often or (state.page and not fresh),
        finite=0,
        origin=place if fresh or not state.origin.count else state.origin,
    )


def _conclude(state: State) -> Finding:
    opened, place = state.opened, state.origin
    where = f" at {place.module}" if place.module else ""
    return Finding(
        verdict=VERDICT.id,
        severity="page" if state.page else "ticket",
        title=f"Non-finite gradients{where} with a finite loss",
        cause=f"{_when(state)} gradients were not finite although the loss was.{place.words()}{_why(state)}",
        fix=_fix(state),
        tensor=place.tensor,
        module=place.module,
        evidence={
            "bad_steps": state.bad,
            "steps_applied": state.applied,
            "scale": state.scale if state.scale > 0 else None,
            "room_bits": round(state.room_bits, 1) if state.scale > 0 else None,
            "nan_without_inf": not place.inf,
            "nonfinite_tensors": place.count,
            "finite_tensors": place.before + place.after,
        },
        **found(opened),
    )


def _when(state: State) -> str:
    if state.bad == 1:
        return f"At step {state.opened.last}"
    return f"In {state.bad} steps from {state.opened.first} to {state.opened.last}"


def _why(state: State) -> str:
    if state.applied:
        were, them = ("was", "it") if state.applied == 1 else ("were", "them")
        scaler = "" if state.scale > 0 else f" and there is no scaler to skip {them}"
        return f" {words.count(state.applied, 'such step')} {were} applied{scaler}: the weights are poisoned."
    if not state.scale > 0:
        return " The optimizer did not step, so the weights are unharmed."
    spare = round(state.room_bits)
    room = f"left {words.count(spare, 'bit')} of room (a factor of {2**spare})" if state.room_bits >= 1 else ""
    left = f"the scale of {words.scale(state.scale)} {room}" if room else ""
    nan = "" if state.origin.inf else "none of them is Inf"
    reason = " and ".join(filter(None, (left, nan))) or f"the scale of {words.scale(state.scale)} had worked"
    skipped = "that step" if state.bad == 1 else "those steps"
    return f" It is no overflow: {reason}. The scaler skipped {skipped}, so the weights are unharmed."


def _fix(state: State) -> str:
    place = state.origin
    where = f"{place.module} and of what follows it directly" if place.module else "the loss and the last layers"
    behind = (
        f"Look at the backward pass of {where}: the root, norm or division of something"
        " that can be zero (add an eps inside), log, exp, a custom Function. Clamp its input, or run it in float32 with"
        " torch.autocast(..., enabled=False)."
    )
    if state.applied:
        return f"Stop the run and restore {words.earlier(state.opened.first)}. {behind}"
    return behind


VERDICT = Verdict(
    id="nonfinite-gradient",
    severity="page",
    title="Gradients are not finite though the loss is",
    question="Are gradients NaN or Inf for a reason other than the loss scale?",
    columns=(
        "grad_norm",
        "grad_nonfinite",
        "grad_absmax",
        "loss",
        "scale",
        "applied",
        "skipped",
        "grad.norm",
        "grad.infs",
    ),
    events=("gradient.nonfinite", "usage.update_between_optimizers"),
    state=State,
    judge=judge,
    explains=(
        "scale-collapse",
        "overflow-storm",
        "nonfinite-loss",
        "nonfinite-weights",
        "lopsided-step",
        "scheduler-ahead",
    ),
)
