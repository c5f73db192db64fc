"""nonfinite-gradient: gradients are NaN or Inf although loss and loss scale are not the reason."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework import gradient_frontier as origin
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.gradient_frontier import Origin
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.scale_limits import INVERSE_INFINITE_SCALE, MAX_ACCIDENTAL_SKIPS, MIN_USEFUL_SCALE
from ammeter.verdicts.nonfinite import headroom as room
from ammeter.verdicts.nonfinite import origin_event as born
from ammeter.verdicts.nonfinite.headroom import Headroom
from ammeter.verdicts.nonfinite.origin_event import NonfiniteOrigin
from ammeter.wire.columns import Mask, View, measured
from ammeter.wire.frames import Event

ROOM_BITS = 6
"""Minimum room in bits for which an Inf at a working scale is no overflow. The room is measured below the load that
gradients tolerate: the gradient would have to be 64 times that of the steps before, or gradients inside the network 64
times those of its weights. Of 120 overflows provoked in GPTs, encoders and perceptrons of 4 to 16 layers by a
growth_interval of 12, none had more than 1 bit, and every one showed an Inf, which an overflow produces first."""

NAN_ROOM_BITS = 3
"""Minimum room in bits for NaN without any Inf. An overflow inside a softmax's backward pass reaches the weights only
as the NaN of Inf - Inf, even at a run's initial scale that had worked for some steps. Of 170 provoked in convolutional
networks with attention pooling, 30 showed NaN alone, with 2.3 bits at most. Each skip adds a bit, so a permanent NaN is
reported three steps later."""

OFTEN_SKIPS, WITHIN_STEPS = 3, 10
"""Bad steps within so many steps that raise the severity to `page`. Two in a row do so too. It does not matter whether
they were skipped."""

RECOVERED = 50
"""Good steps that close the verdict."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    room: Headroom = Headroom()
    begun: int = -1
    series: int = 0
    proven: int = 0
    """`begun`: first skipped step in a row. `series`: number of them. `proven`: those at a scale that had worked."""
    waiting: int = -1
    """A bad step located in one tensor, or with an Inf despite room. It becomes a finding if the run recovers;
    otherwise scale-collapse reports it."""
    nan_overflows: bool = False
    """Whether NaN without Inf is no evidence against an overflow in this run. That is so if a scale that was too high
    gave such NaN, or if update() is called between two optimizers, because the Inf may be in gradients of the second
    one."""
    scale: float = math.nan
    recent: tuple[int, ...] = ()
    bad: int = 0
    applied: int = 0
    page: bool = False
    finite: int = 0
    room_bits: float = 0.0
    origin: Origin = Origin()
    lowest: float = math.inf
    """Lowest scale of a failed step, in the present row of skips or the episode."""
    after: float = math.nan
    """Scale at which the next step was applied."""
    loss_unread: bool = False
    """`loss_unread`: a bad step's loss was not measured. `step_unknown`: the agent did not see if the optimizer
    stepped."""
    step_unknown: bool = False
    scaled: bool = False
    """Whether a scaler was in use in a bad step that was applied nevertheless."""
    parted: int = 0
    """Bad steps that the scaler skipped for one optimizer and not for another."""
    weight: str = ""
    """A weight with NaN or Inf that was read after a bad step was applied."""
    born: NonfiniteOrigin = NonfiniteOrigin()
    """The module whose backward pass turned finite gradients into NaN or Inf, from hooks."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts(*VERDICT.events):
        if isinstance(part, View):
            state = _rows(state, part)
        elif isinstance(part, Event) and part.name == "usage.update_between_optimizers":
            state = replace(state, nan_overflows=True)
        elif isinstance(part, Event) and part.name == "weights.nonfinite":
            state = _poisoned(state, part)
        elif isinstance(part, Event) and part.name == "origin.found":
            state = _born(state, part)
        elif isinstance(part, Event) and state.opened.last == part.step and not state.origin.count:
            state = replace(state, origin=origin.of_event(part.step, part.data))
    return state, changed(_conclude, before, state)


def _poisoned(state: State, event: Event) -> State:
    tensors = event.data.get("tensors") or ["a weight"]
    harmed = state.opened.active and state.applied and not state.weight
    return replace(state, weight=str(tensors[0])[: born.MAX_NAME_CHARS]) if harmed else state


def _born(state: State, event: Event) -> State:
    found = born.of_event(event)
    seen = found.kind == "backward" and found.read and found.module and found.first >= state.opened.first
    return replace(state, born=found) if seen and state.opened.active and not state.born.kind else state


def _rows(state: State, rows: View) -> State:
    bad = _bad_rows(rows)
    if not (state.series or state.opened.active or state.room.overflowed or bad.any()):
        after = room.all_good(state.room, rows)
        return state if after is state.room else replace(state, room=after)
    losses = rows.loss()
    losses_read = measured(losses)
    loss_bad = losses_read & ~np.isfinite(losses)
    records = rows.records("scale", "applied", "skipped", "grad_norm", "grad_absmax")
    for at, (step, (scale, applied, skipped, norm, absmax)) in enumerate(records):
        if not bad[at]:
            state = _good(state, step, scale, norm, absmax) if applied > 0 else state
        elif not loss_bad[at]:
            place = origin.of_row(rows, at) or Origin()
            unprotected = applied > 0 and not skipped > 0
            state = _scaled(state, step, scale, place) if skipped > 0 else _open(state, step, place, unprotected)
            state = _known(state, step, bool(losses_read[at]), applied, skipped, scale)
    return state


def _known(state: State, step: int, loss_read: bool, applied: float, skipped: float, scale: float) -> State:
    """Stores missing measurements of a bad step.

    Without an open finding they belong to the present row of skips.
    """
    if not (state.series or (state.opened.active and state.opened.last == step)):
        return state
    return replace(
        state,
        loss_unread=state.loss_unread or not loss_read,
        step_unknown=state.step_unknown or math.isnan(applied),
        parted=state.parted + (applied > 0 and skipped > 0),
        scaled=state.scaled or (applied > 0 and scale >= 0),
    )


def _bad_rows(rows: View) -> Mask:
    norms, elements = rows.scalar("grad_norm"), rows.scalar("grad_nonfinite")
    broken = measured(norms) & ~np.isfinite(norms) & ~(elements == 0)
    found: Mask = broken | (elements > 0) | (rows.scalar("skipped") > 0)
    return found


def _good(state: State, step: int, scale: float, norm: float, absmax: float) -> State:
    if state.waiting >= 0 and state.series < MAX_ACCIDENTAL_SKIPS:
        state = _open(state, state.waiting, state.origin, unprotected=False, reached=step)
    if state.opened.active:
        state = replace(state, after=scale) if math.isnan(state.after) else state
    elif state.series:
        state = replace(state, lowest=math.inf, loss_unread=False, step_unknown=False, parted=0)
    after = room.good(state.room, step, scale, norm, absmax)
    opened = state.opened.over() if state.finite + 1 >= RECOVERED else state.opened
    finite = state.finite + 1 if opened.active else 0
    return replace(state, room=after, series=0, proven=0, waiting=-1, finite=finite, opened=opened)


def _scaled(state: State, step: int, scale: float, place: Origin) -> State:
    """Processes a step that the scaler skipped; decides whether the scale is the reason."""
    if 0 <= scale <= INVERSE_INFINITE_SCALE:  # unscaling itself turns every gradient into NaN
        return state
    state = replace(state, begun=state.begun if state.series else step, series=state.series + 1)
    state = replace(state, lowest=min(state.lowest, scale) if scale >= 0 else state.lowest)
    only_nan = place.count > 0 and not place.inf
    spread = place.handed_on or place.everywhere
    proven = 0 < scale <= state.room.worked
    state = replace(state, proven=state.proven + proven)
    hopeless = state.proven >= MAX_ACCIDENTAL_SKIPS or (
        state.series >= MAX_ACCIDENTAL_SKIPS and scale <= MIN_USEFUL_SCALE
    )
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
    """Returns the room in bits from which the step is no overflow."""
    if state.nan_overflows or not only_nan:
        return ROOM_BITS
    return NAN_ROOM_BITS if state.room.norm > 0 else -math.inf


def _seen(state: State, scale: float, bits: float) -> State:
    """Stores the evidence, unless the finding is already open."""
    return state if state.opened.active else replace(state, scale=scale, room_bits=bits)


def _open(state: State, step: int, place: Origin, unprotected: bool, reached: int | None = None) -> State:
    """Opens or extends the finding.

    Args:
        state: The state so far.
        step: The bad step.
        place: Its origin by the gradients.
        unprotected: Whether the step was applied.
        reached: The later step at which the finding became certain, if there is one.
    """
    fresh = not state.opened.active
    recent = (() if fresh else state.recent) + (step,)
    recent = tuple(each for each in recent if step - each < WITHIN_STEPS)[-OFTEN_SKIPS:]
    often = (
        len(recent) >= OFTEN_SKIPS
        or (len(recent) > 1 and recent[-2] == step - 1)
        or state.series >= MAX_ACCIDENTAL_SKIPS
    )
    opened = state.opened.at(state.begun if state.series else step, step)
    if fresh:
        state = replace(state, after=math.nan, weight="", born=NonfiniteOrigin(), scaled=False)
        if not state.series:
            state = replace(state, lowest=math.inf, loss_unread=False, step_unknown=False, parted=0)
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
    finite = "" if state.loss_unread else " with a finite loss"
    loss = "; the loss was not read" if state.loss_unread else " although the loss was"
    return Finding(
        verdict=VERDICT.id,
        severity="page" if state.page else "ticket",
        title=f"Non-finite gradients{where}{finite}",
        cause=f"{_when(state)} gradients were not finite{loss}.{place.words()}{_where(state)}{_why(state)}",
        fix=_fix(state),
        tensor=place.tensor,
        module=place.module,
        evidence={
            "bad_steps": state.bad,
            "steps_applied": state.applied,
            "scale": state.scale if state.scale > 0 else None,
            "room_bits": round(state.room_bits, 1) if state.scale > 0 else None,
            "lowest_failed_scale": state.lowest if math.isfinite(state.lowest) else None,
            "next_applied_scale": state.after if state.after >= 0 else None,
            "steps_partly_applied": state.parted,
            "loss_finite": None if state.loss_unread else True,
            "born_in": "backward" if state.born.kind else None,
            "nonfinite_weight": state.weight or None,
            "nan_without_inf": not place.inf,
            "nonfinite_tensors": place.count,
            "finite_tensors": place.before + place.after,
        },
        **lifecycle_fields(opened),
    )


def _when(state: State) -> str:
    if state.bad == 1:
        return f"At step {state.opened.last}"
    return f"In {state.bad} steps from {state.opened.first} to {state.opened.last}"


def _where(state: State) -> str:
    """Describes the origin by hooks, else by the gradients."""
    if state.born.kind and not state.loss_unread:
        return (
            f" Hooks saw finite gradients go into {state.born.module} and NaN or Inf come out: born in backward there."
        )
    if state.origin.handed_on:
        return f" That points to the backward pass of {state.origin.module}."
    return ""


def _why(state: State) -> str:
    if state.applied:
        were, them = ("was", "it") if state.applied == 1 else ("were", "them")
        scaler = "" if state.scaled else f" and no scaler is in use that would have skipped {them}"
        harm = (
            f", and the weights are poisoned: {state.weight} holds NaN or Inf."
            if state.weight
            else ". The weights were not seen to hold NaN or Inf since; torch.isfinite over them tells."
        )
        return f" {wording.count(state.applied, 'such step')} {were} applied{scaler}{harm}"
    if not state.scale > 0:
        if state.step_unknown:
            return " Whether the optimizer stepped was not seen."
        return " The optimizer did not step, so no weight was changed."
    skipped = "that step" if state.bad == 1 else "those steps"
    if state.parted:
        return f"{_overflow(state)} The scaler skipped {skipped} for one optimizer, and another one stepped."
    return f"{_overflow(state)} The scaler skipped {skipped}, so no weight was changed."


def _overflow(state: State) -> str:
    """Describes the evidence against an overflow, and the missing evidence."""
    if state.lowest <= MIN_USEFUL_SCALE:
        return f" It is no overflow of the loss scale: a step failed at a scale of {wording.scale(state.lowest)}, too."
    spare = round(state.room_bits)
    known = [f"the scale of {wording.scale(state.scale)} had worked"]
    if state.room_bits >= 1:
        factor = f"a factor of {2**spare}"
        known.append(f"usual gradients left {wording.count(spare, 'bit')} of room there ({factor})")
    if not state.origin.inf:
        known.append("none of them is Inf")
    many = f" {state.bad} steps failed, the last at a scale of {wording.scale(state.lowest)};" if state.bad > 1 else ""
    one = f" with gradients {2**spare} times the usual ones" if state.room_bits >= 1 else ""
    sentence = f"{', '.join(known[:-1])}{' and ' if known[1:] else ''}{known[-1]}"
    sentence = sentence if many else wording.sentence(sentence)
    return (
        f"{many} {sentence}. An overflow is unlikely, but one"
        f" sample{one} would make it: the same batch at init_scale=1 tells."
    )


def _fix(state: State) -> str:
    place = state.born if state.born.kind else state.origin
    where = f"{place.module} and of what follows it directly" if place.module else "the loss and the last layers"
    behind = (
        f"Look at the backward pass of {where}: the root, norm or division of something"
        " that can be zero (add an eps inside), log, exp, a custom Function. Clamp its input, or run it in float32 with"
        " torch.autocast(..., enabled=False)."
    )
    if state.applied and state.weight:
        return f"Stop the run and restore {wording.earlier(state.opened.first)}. {behind}"
    if state.applied:
        return f"Check the weights: if one is not finite, restore {wording.earlier(state.opened.first)}. {behind}"
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
        "loss_backward",
        "scale",
        "applied",
        "skipped",
        "grad.norm",
        "grad.infs",
    ),
    events=("gradient.nonfinite", "usage.update_between_optimizers", "weights.nonfinite", "origin.found"),
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
