"""nonfinite-loss: the training loss is NaN or Inf."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework import gradient_frontier, wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import changed, lifecycle_fields
from ammeter.verdicts.framework.origins import origin_event
from ammeter.verdicts.nonfinite import loss_wording
from ammeter.verdicts.nonfinite.loss_episode import Gradients, State, with_bad_loss
from ammeter.wire.columns import View, measured
from ammeter.wire.frames import Event

RECOVERED_LOSSES = 10
"""Finite losses of applied steps in a row that close the verdict. Losses without an applied step do not count, because
they repair nothing."""

PAGE_LOSSES = 2
"""Non-finite losses before RECOVERED_LOSSES finite ones that raise the severity to `page`, even if no weight was
changed. A single one that the scaler skipped, one bad batch, can wait until the morning."""

UNSCALED = 1.0
"""Loss scale at which no gradient is enlarged. At a larger one, a gradient inside the loss overflows as others do."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts(*VERDICT.events):
        if isinstance(part, View):
            state = _rows(state, part)
        elif isinstance(part, Event):
            state = _event(state, part)
    return state, changed(_conclude, before, state)


def _event(state: State, event: Event) -> State:
    if event.name == "weights.nonfinite":
        return _weights(state, event)
    if event.name == "scaler.seen":
        return replace(state, own_scaled=True) if event.data.get("own") else state
    if event.name == "step.unfinished":
        return _unfinished(state, event.data)
    if not state.opened.active:
        return state
    if event.name == "gradient.nonfinite":
        if state.frontier.count > 0:
            return state
        return replace(state, frontier=gradient_frontier.of_event(event.step, event.data), unread=False)
    origin = origin_event.of_event(event)
    if origin.kind == "gradient" and state.bad == state.skipped and state.opened.times == 1:
        return State(
            weight_before=state.weight_before, has_gradients=True, own_scaled=state.own_scaled, passes=state.passes
        )
    own_harm = origin.kind == "weights" and (state.at_risk or state.uncertain) and origin.first != event.step
    is_known = state.origin.kind and not origin.refines(state.origin)
    if is_known or own_harm or origin.kind == "backward" or origin.first < state.opened.first:
        return state
    return replace(state, origin=state.origin.refined_by(origin))


def _unfinished(state: State, data: dict[str, Any]) -> State:
    """Opens the finding at a step in which the program ended itself."""
    loss, step, line = data.get("loss"), data.get("step"), str(data.get("caller") or "")
    if not isinstance(loss, float) or math.isfinite(loss) or not isinstance(step, int) or state.opened.active:
        return state
    where = f" at {line[: origin_event.MAX_NAME_CHARS]}" if line else ""
    when = "after backward()" if data.get("backward") else "without backward()"
    state = replace(with_bad_loss(state, step, loss, False, False, "unread"), ended=f"{where}, {when}")
    origin = {**(data.get("origin") or {}), "call": origin_event.UNFINISHED}
    return replace(state, origin=origin_event.of_event(Event("origin.found", step, 0, origin)))


def _weights(state: State, event: Event) -> State:
    tensors = event.data.get("tensors") or ["a weight"]
    name = str(tensors[0])[: origin_event.MAX_NAME_CHARS]
    if state.uncertain:
        state = replace(state, applied=state.applied + state.uncertain, uncertain=0, at_risk=True)
    if state.at_risk:
        return replace(state, unread=False, weight_after=state.weight_after or name)
    return replace(state, weight_before=state.weight_before or name)


def _rows(state: State, rows: View) -> State:
    losses = rows.loss()
    bad = ~np.isfinite(losses)
    if bad.any():
        bad &= measured(losses)
    if not state.opened.active and not bad.any():
        return _with_usual_passes(state, rows, losses)
    gradients = measured(rows.scalar("grad_norm"))
    broken = (gradients & ~np.isfinite(rows.scalar("grad_norm"))) | (rows.scalar("grad_nonfinite") > 0)
    records = rows.records("loss", "skipped", "applied", "scale", "grad_norm", "micro_batches")
    for at, (step, (loss, skipped, applied, scale, norm, passes)) in enumerate(records):
        if bad[at] and state.has_gradients and skipped > 0 >= applied and scale > UNSCALED:
            continue
        if bad[at]:
            read: Gradients = "broken" if broken[at] else "finite" if gradients[at] else "unread"
            column = state.column if state.opened.active else rows.loss_at(at)
            state = replace(with_bad_loss(state, step, loss, skipped > 0, applied > 0, read, passes), column=column)
            gradient_nonzero = applied > 0 and bool(gradients[at]) and norm > 0
            is_scaled = state.scaled or state.own_scaled or scale >= 0
            state = replace(state, scaled=is_scaled, gradient_nonzero=state.gradient_nonzero or gradient_nonzero)
            if broken[at] and not state.frontier.count and (frontier := gradient_frontier.of_row(rows, at)):
                state = replace(state, frontier=frontier)
        elif math.isfinite(loss) and applied > 0 and state.opened.active:
            state = replace(state, finite=state.finite + 1)
            if state.finite >= RECOVERED_LOSSES:
                state = replace(state, opened=state.opened.over(), weight_before="")
        if passes != state.passes and passes > 0 and applied > 0 and math.isfinite(loss):
            state = replace(state, passes=passes)
    return state


def _with_usual_passes(state: State, rows: View, losses: np.ndarray[Any, Any]) -> State:
    """Remembers the backward passes of the last applied step; all of these losses are finite."""
    passes = rows.scalar("micro_batches")
    known = passes[measured(losses) & (passes > 0) & (rows.scalar("applied") > 0)]
    return replace(state, passes=float(known[-1])) if len(known) and known[-1] != state.passes else state


def _conclude(state: State) -> Finding:
    opened, frontier, origin = state.opened, state.frontier, state.origin
    name, which = str(wording.number(state.value)), wording.of_loss(state.column)
    since = f"at step {opened.first}" if state.bad == 1 else f"{state.bad} times {opened.since}"
    harms = state.applied > 0 or state.bad >= PAGE_LOSSES or loss_wording.weights_were_bad(state)
    page = harms or not state.scaled or bool(state.ended)
    return Finding(
        verdict=VERDICT.id,
        severity="page" if page else "ticket",
        title=f"Loss{which} is {'NaN' if math.isnan(state.value) else 'infinite'} at step {opened.first}"
        + (f": {origin.operator} at {origin.line}" if origin.kind == "forward" and origin.line else ""),
        cause=f"The training loss{which} was {name} {since}.{loss_wording.damage(state)}"
        + (origin.words() or frontier.words()),
        fix=loss_wording.fix(state),
        tensor=origin.tensor or state.weight_before or frontier.tensor,
        module=origin.module or frontier.module,
        caller=origin.line or (origin.caller if origin.behind and not state.ended else "") or None,
        evidence=loss_wording.evidence(state),
        **lifecycle_fields(opened),
    )


VERDICT = Verdict(
    id="nonfinite-loss",
    severity="page",
    title="The loss is not finite",
    question="Is the training loss NaN or Inf?",
    columns=(
        *("loss", "loss_backward", "skipped", "applied", "scale", "micro_batches"),
        *("grad_norm", "grad_nonfinite", "grad.norm", "grad.infs"),
    ),
    events=("scaler.seen", "gradient.nonfinite", "origin.found", "weights.nonfinite", "step.unfinished"),
    state=State,
    history=("loss",),
    judge=judge,
    explains=(
        *("nonfinite-gradient", "scale-collapse", "overflow-storm", "gradient-underflow", "nonfinite-weights"),
        *("gradients-not-reset", "lopsided-step", "nonfinite-validation"),
    ),
)
