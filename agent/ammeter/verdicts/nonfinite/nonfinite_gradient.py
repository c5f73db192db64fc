"""nonfinite-gradient: gradients are NaN or Inf although loss and loss scale are not the reason."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework import gradient_frontier
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.gradient_frontier import Origin
from ammeter.verdicts.framework.lifecycle import changed, lifecycle_fields
from ammeter.verdicts.framework.origins import origin_event
from ammeter.verdicts.framework.scale_limits import INVERSE_INFINITE_SCALE, MAX_ACCIDENTAL_SKIPS, MIN_USEFUL_SCALE
from ammeter.verdicts.nonfinite import gradient_wording, headroom
from ammeter.verdicts.nonfinite.gradient_episode import (
    MAX_READ_LATE_STEPS,
    State,
    is_no_overflow,
    keeps_doubts,
    open_episode,
    with_doubtful_step,
    with_functions,
    with_scaler,
)
from ammeter.wire.columns import Mask, View, measured
from ammeter.wire.frames import Event, Hello

HEADROOM_BITS = 6
"""Minimum headroom in bits for which an Inf at a working scale is no overflow. It is measured below the load that
gradients tolerate: the gradient would have to be 64 times that of the steps before, or gradients inside the network 64
times those of its weights. Of 120 overflows provoked in GPTs, encoders and perceptrons of 4 to 16 layers by a
growth_interval of 12, none had more than 1 bit, and every one showed an Inf, which an overflow produces first."""

NAN_HEADROOM_BITS = 4
"""Minimum headroom in bits for NaN without any Inf. An overflow inside a softmax's backward pass reaches the weights
only as the NaN of Inf - Inf, even at a run's initial scale that had worked for some steps. Of 170 provoked in
convolutional networks with attention pooling, 30 showed NaN alone, with 2.3 bits at most; one of residual perceptrons
had 3.0. Each skip adds a bit, so a permanent NaN is reported four steps later."""

RECOVERED_STEPS = 50
"""Good steps that close the verdict."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("hello", *VERDICT.events):
        if isinstance(part, View):
            state = _rows(state, part)
        elif isinstance(part, Hello):
            state = replace(state, of_ranks=part.world_size > 1)
        elif isinstance(part, Event) and part.name == "usage.update_between_optimizers":
            state = replace(state, nan_overflows=True)
        elif isinstance(part, Event) and part.name == "scaler.seen":
            state = with_scaler(state, part.data)
        elif isinstance(part, Event) and part.name == "weights.nonfinite":
            state = _weights(state, part)
        elif isinstance(part, Event) and part.name == "step.unfinished":
            state = _unfinished(state, part.data)
        elif isinstance(part, Event) and part.name == "origin.found":
            state = _origin(state, part)
        elif isinstance(part, Event) and part.name == "origin.functions":
            state = with_functions(state, part.data)
        elif isinstance(part, Event) and state.opened.last == part.step and not state.frontier.count:
            state = replace(state, frontier=gradient_frontier.of_event(part.step, part.data))
    return state, changed(_conclude, before, state)


def _unfinished(state: State, data: dict[str, Any]) -> State:
    """Opens the finding at a step in which the program ended itself, because of its gradients."""
    step, line, function = data.get("step"), str(data.get("caller") or ""), data.get("function")
    if not isinstance(step, int) or not (data.get("count") or function):
        return state
    where = f" at {line[: origin_event.MAX_NAME_CHARS]}" if line else ""
    by = f": torch's anomaly detection found NaN in the gradients that {function} returned" if function else ""
    state = open_episode(state, step, gradient_frontier.of_event(step, data), unprotected=False)
    return replace(state, page=True, ended=f"{where}{by}", loss_unread=data.get("loss_read") is not True)


def _weights(state: State, event: Event) -> State:
    """Names a weight of the finding. It also proves that doubtful steps were applied."""
    is_late = event.step > state.doubtful_step + MAX_READ_LATE_STEPS and not keeps_doubts(state)
    if 0 <= state.doubtful_step <= event.step and not state.opened.active and not is_late:
        state = open_episode(state, state.doubtful_step, state.doubtful, unprotected=True, certain_at=event.step)
        state = replace(state, doubtful_step=-1, scaled=True)
    tensors = event.data.get("tensors") or ["a weight"]
    affected = state.opened.active and state.applied and not state.weight
    return replace(state, weight=str(tensors[0])[: origin_event.MAX_NAME_CHARS]) if affected else state


def _origin(state: State, event: Event) -> State:
    origin = origin_event.of_event(event)
    certain = origin.kind == "backward" and origin.read and (origin.module or origin.trial)
    if not certain or origin.first < state.opened.first:
        return state
    if is_no_overflow(origin) and state.series and not state.opened.active:
        state = open_episode(state, state.last_skip, state.frontier, unprotected=False, certain_at=event.step)
    return replace(state, origin=origin) if state.opened.active and not state.origin.kind else state


def _rows(state: State, rows: View) -> State:
    bad = _bad_rows(rows)
    if not (state.series or state.opened.active or state.headroom.overflowed or bad.any()):
        after = headroom.all_applied(state.headroom, rows)
        if state.own_scaled:
            after = headroom.with_limit(after, rows.scalar("grad_norm")[rows.scalar("applied") > 0])
        return state if after is state.headroom else replace(state, headroom=after)
    losses = rows.loss()
    losses_read = measured(losses)
    loss_nonfinite = losses_read & ~np.isfinite(losses)
    names = ("scale", "applied", "skipped", "grad_norm", "grad_absmax", "weights_nonfinite", "local_nonfinite")
    for at, (step, (scale, applied, skipped, norm, absmax, weights, local)) in enumerate(rows.records(*names)):
        loss = float(losses[at])
        if not bad[at]:
            state = _good(state, step, (scale, norm, absmax, loss), applied) if applied > 0 else state
        elif not loss_nonfinite[at]:
            frontier = gradient_frontier.of_row(rows, at) or Origin()
            if skipped > 0:
                state = _skipped(state, step, scale, frontier, int(skipped + (applied if applied > 0 else 0)), loss)
            elif applied > 0 and (keeps_doubts(state) or weights == 0):
                state = with_doubtful_step(state, step, frontier)
            else:
                state = open_episode(state, step, frontier, unprotected=applied > 0)
            state = _with_unread(state, step, bool(losses_read[at]), applied, skipped, scale)
            state = replace(state, finite_before=step) if local == 0 else state
            if state.opened.active and state.opened.last < step:
                state = replace(state, uncounted=state.uncounted + 1)
    return state


def _with_unread(state: State, step: int, loss_read: bool, applied: float, skipped: float, scale: float) -> State:
    """Stores missing measurements of a bad step.

    Without an open finding they belong to the present row of skips.
    """
    if not (state.series or (state.opened.active and state.opened.last == step)):
        return state
    return replace(
        state,
        loss_unread=state.loss_unread or not loss_read,
        step_unknown=state.step_unknown or math.isnan(applied),
        partly_applied=state.partly_applied + (applied > 0 and skipped > 0),
        scaled=state.scaled or (applied > 0 and scale >= 0),
    )


def _bad_rows(rows: View) -> Mask:
    norms, elements = rows.scalar("grad_norm"), rows.scalar("grad_nonfinite")
    bad: Mask = (elements > 0) | (rows.scalar("skipped") > 0)
    finite = np.isfinite(norms)
    return bad if finite.all() else bad | (measured(norms) & ~finite & ~(elements == 0))


def _good(state: State, step: int, values: tuple[float, float, float, float], optimizers: float) -> State:
    if state.pending_step >= 0 and state.series < MAX_ACCIDENTAL_SKIPS:
        if state.opened.active:  # the pending step is one of those
            state = replace(state, uncounted=state.uncounted - 1)
        state = open_episode(state, state.pending_step, state.frontier, unprotected=False, certain_at=step)
        state = replace(state, opened=state.opened.until(max(state.last_skip, state.opened.last)))
    if state.opened.active:
        state = replace(state, after=values[0]) if math.isnan(state.after) else state
    elif state.series:
        state = replace(state, lowest=math.inf, loss_unread=False, step_unknown=False, partly_applied=0)
    after = headroom.applied(headroom.with_optimizers(state.headroom, optimizers), step, *values)
    if state.own_scaled:
        after = headroom.with_limit(after, np.array(values[1:2]))
    opened = state.opened.over() if state.finite + 1 >= RECOVERED_STEPS else state.opened
    finite = state.finite + 1 if opened.active else 0
    return replace(state, headroom=after, series=0, unexpected_skips=0, pending_step=-1, finite=finite, opened=opened)


def _skipped(state: State, step: int, scale: float, frontier: Origin, optimizers: int, loss: float) -> State:
    """Processes a step that the scaler skipped; decides whether the scale is the reason.

    optimizers: those that were asked to step. More than before include one for which no scale has worked so far.
    """
    if 0 <= scale <= INVERSE_INFINITE_SCALE:  # unscaling itself turns every gradient into NaN
        return state
    state = replace(state, first_skip=state.first_skip if state.series else step, series=state.series + 1)
    state = replace(state, last_skip=step)
    state = replace(state, lowest=min(state.lowest, scale) if scale >= 0 else state.lowest)
    if state.origin.kind and state.series > 1 and state.opened.active:
        return open_episode(state, step, frontier, unprotected=False)
    only_nan = frontier.count > 0 and not frontier.inf
    spread = frontier.handed_on or frontier.everywhere
    had_worked = headroom.covers(state.headroom, scale, optimizers)
    state = replace(state, unexpected_skips=state.unexpected_skips + had_worked)
    hopeless = state.unexpected_skips >= MAX_ACCIDENTAL_SKIPS or (
        state.series >= MAX_ACCIDENTAL_SKIPS and (scale <= MIN_USEFUL_SCALE or _is_unscaled(state, scale))
    )
    if spread and hopeless:
        return open_episode(_with_evidence(state, scale, 0.0), step, frontier, unprotected=False)
    if not had_worked:
        if math.isnan(scale) or scale <= state.headroom.applied_scale:  # nothing is known of a further optimizer
            return state
        nan_overflows = state.nan_overflows or only_nan
        return replace(state, nan_overflows=nan_overflows, headroom=headroom.overflow(state.headroom, scale))
    bits = state.headroom.bits(scale)
    if state.own_scaled and state.headroom.is_limited and not only_nan:
        failed_before = state.series == 1 and scale < state.failed_scale < math.inf
        state = replace(state, failed_scale=min(scale, state.failed_scale))
        if not failed_before:  # clipped norms show no headroom; a second failure at a lower scale is no overflow
            return state
    if bits - state.headroom.rise(loss) < _bits_needed(state, only_nan):
        return state
    if only_nan and spread:
        return open_episode(_with_evidence(state, scale, bits), step, frontier, unprotected=False)
    if state.pending_step >= 0:
        return state
    return replace(_with_evidence(state, scale, bits), pending_step=step, frontier=frontier)


def _is_unscaled(state: State, scale: float) -> bool:
    """Whether the program, which has trained without a loss scale, skips the step itself."""
    return math.isnan(scale) and not state.own_scaled and state.headroom.norm > 0


def _bits_needed(state: State, only_nan: bool) -> float:
    """Returns the headroom in bits from which the step is no overflow."""
    if state.nan_overflows or not only_nan:
        return HEADROOM_BITS
    return NAN_HEADROOM_BITS if state.headroom.norm > 0 else -math.inf


def _with_evidence(state: State, scale: float, bits: float) -> State:
    """Stores the evidence, unless the finding is already open."""
    return state if state.opened.active else replace(state, scale=scale, headroom_bits=bits)


def _conclude(state: State) -> Finding:
    frontier, is_located = state.frontier, gradient_wording.is_located(state)
    located = (gradient_wording.module_before(state) or state.origin.module) if is_located else ""
    return Finding(
        verdict=VERDICT.id,
        severity="page" if state.page else "ticket",
        title=gradient_wording.title(state),
        cause=gradient_wording.cause(state),
        fix=gradient_wording.fix(state),
        tensor=None if is_located else frontier.tensor,
        module=located or frontier.module or state.origin.module,
        caller=state.origin.line or None,
        evidence=_evidence(state),
        **lifecycle_fields(state.opened),
    )


def _evidence(state: State) -> dict[str, Any]:
    frontier, scale = state.frontier, state.scale
    return {
        "bad_steps": state.bad,
        "steps_applied": state.applied,
        "scale": scale if scale > 0 else None,
        "room_bits": round(state.headroom_bits, 1) if scale > 0 else None,
        "lowest_failed_scale": state.lowest if math.isfinite(state.lowest) else None,
        "next_applied_scale": state.after if state.after >= 0 else None,
        "steps_partly_applied": state.partly_applied,
        "loss_finite": None if state.loss_unread else True,
        "born_in": "backward" if state.origin.kind else None,
        **gradient_wording.trial_evidence(state),
        "nonfinite_weight": state.weight or None,
        **({"functions": [function.name for function in state.functions]} if state.functions else {}),
        **({"finite_before_reduction": state.finite_before} if gradient_wording.came_later(state) else {}),
        "nan_without_inf": not frontier.inf,
        "nonfinite_tensors": frontier.count,
        "finite_tensors": frontier.before + frontier.after,
    }


VERDICT = Verdict(
    id="nonfinite-gradient",
    severity="page",
    title="Non-finite gradients with a finite loss",
    question="Are gradients NaN or Inf for a reason other than the loss scale?",
    columns=(
        *("grad_norm", "grad_nonfinite", "grad_absmax", "loss", "loss_backward", "scale", "applied", "skipped"),
        *("weights_nonfinite", "grad.norm", "grad.infs", "local_nonfinite"),
    ),
    events=(
        *("gradient.nonfinite", "usage.update_between_optimizers", "weights.nonfinite", "origin.found"),
        *("origin.functions", "scaler.seen", "step.unfinished"),
    ),
    state=State,
    history=("grad_norm",),
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
