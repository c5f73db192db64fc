"""nonfinite-loss: the training loss is NaN or Inf."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework import gradient_frontier, wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.gradient_frontier import Origin
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.nonfinite import origin_event
from ammeter.verdicts.nonfinite.origin_event import NonfiniteOrigin
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

Gradients = Literal["finite", "broken", "unread"]


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    bad: int = 0
    skipped: int = 0
    applied: int = 0
    at_risk: bool = False
    """`at_risk`: a step was applied whose gradients were not known to be finite. `unread`: nor were they known to be
    non-finite."""
    unread: bool = False
    value: float = math.nan
    finite: int = 0
    scaled: bool = False
    frontier: Origin = Origin()
    origin: NonfiniteOrigin = NonfiniteOrigin()
    weight_before: str = ""
    """A weight that was non-finite before this series. No step of the series was applied."""
    weight_after: str = ""
    """A non-finite weight that was read after a step of this series was applied."""
    partly_applied: int = 0
    """Steps of this series that the scaler skipped for one optimizer and not for another."""
    gradient_nonzero: bool = False
    """Whether a gradient of an applied step was read and was not zero."""
    column: str = ""
    """The name of the loss, if the run has several."""
    has_gradients: bool = False
    """Whether the loss contains gradients, one of which was not finite in a step that the scaler skipped."""
    ended: str = ""
    """How the program ended in the step with this loss; empty for a step that was completed."""
    own_scaled: bool = False
    """Whether the program has a loss scale of its own. The row of a step that it applied may also contain an earlier
    one that it skipped."""
    uncertain: int = 0
    """Steps of this series that such a program may have skipped or applied."""


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
        return State(weight_before=state.weight_before, has_gradients=True, own_scaled=state.own_scaled)
    own_harm = origin.kind == "weights" and (state.at_risk or state.uncertain) and origin.first != event.step
    is_known = state.origin.kind and not origin.refines(state.origin)
    if is_known or own_harm or origin.kind == "backward" or origin.first < state.opened.first:
        return state
    return replace(state, origin=origin)


def _unfinished(state: State, data: dict[str, Any]) -> State:
    """Opens the finding at a step in which the program ended itself."""
    loss, step, line = data.get("loss"), data.get("step"), str(data.get("caller") or "")
    if not isinstance(loss, float) or math.isfinite(loss) or not isinstance(step, int) or state.opened.active:
        return state
    where = f" at {line[: origin_event.MAX_NAME_CHARS]}" if line else ""
    when = "after backward()" if data.get("backward") else "without backward()"
    state = replace(_bad(state, step, loss, False, False, "unread"), ended=f"{where}, {when}")
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
        return state
    gradients = measured(rows.scalar("grad_norm"))
    broken = (gradients & ~np.isfinite(rows.scalar("grad_norm"))) | (rows.scalar("grad_nonfinite") > 0)
    records = rows.records("loss", "skipped", "applied", "scale", "grad_norm")
    for at, (step, (loss, skipped, applied, scale, norm)) in enumerate(records):
        if bad[at] and state.has_gradients and skipped > 0 >= applied and scale > UNSCALED:
            continue
        if bad[at]:
            read: Gradients = "broken" if broken[at] else "finite" if gradients[at] else "unread"
            column = state.column if state.opened.active else rows.loss_at(at)
            state = replace(_bad(state, step, loss, skipped > 0, applied > 0, read), column=column)
            gradient_nonzero = applied > 0 and bool(gradients[at]) and norm > 0
            is_scaled = state.scaled or state.own_scaled or scale >= 0
            state = replace(state, scaled=is_scaled, gradient_nonzero=state.gradient_nonzero or gradient_nonzero)
            if broken[at] and not state.frontier.count and (frontier := gradient_frontier.of_row(rows, at)):
                state = replace(state, frontier=frontier)
        elif math.isfinite(loss) and applied > 0 and state.opened.active:
            state = replace(state, finite=state.finite + 1)
            if state.finite >= RECOVERED_LOSSES:
                state = replace(state, opened=state.opened.over(), weight_before="")
    return state


def _bad(state: State, step: int, loss: float, skipped: bool, applied: bool, gradients: Gradients) -> State:
    if not state.opened.active:
        kept = {name: getattr(state, name) for name in ("weight_before", "has_gradients", "own_scaled")}
        state = State(state.opened, value=loss, **kept)
    partly_applied, applied = applied and skipped, applied and not skipped
    is_uncertain = applied and state.own_scaled and gradients != "finite"
    applied = applied and not is_uncertain
    risky = applied and gradients != "finite"
    return replace(
        state,
        opened=state.opened.at(step, step),
        bad=state.bad + 1,
        skipped=state.skipped + skipped,
        applied=state.applied + applied,
        partly_applied=state.partly_applied + partly_applied,
        at_risk=state.at_risk or risky,
        uncertain=state.uncertain + is_uncertain,
        unread=gradients != "broken" and (state.unread if state.at_risk else risky),
        finite=0,
    )


def _conclude(state: State) -> Finding:
    opened, frontier, origin = state.opened, state.frontier, state.origin
    name, which = str(wording.number(state.value)), wording.of_loss(state.column)
    since = f"at step {opened.first}" if state.bad == 1 else f"{state.bad} times {opened.since}"
    harms = state.applied > 0 or state.bad >= PAGE_LOSSES or _weights_were_bad(state)
    page = harms or not state.scaled or bool(state.ended)
    return Finding(
        verdict=VERDICT.id,
        severity="page" if page else "ticket",
        title=f"Loss{which} is {'NaN' if math.isnan(state.value) else 'infinite'} at step {opened.first}",
        cause=f"The training loss{which} was {name} {since}.{_damage(state)}{origin.words() or frontier.words()}",
        fix=_fix(state),
        tensor=origin.tensor or state.weight_before or frontier.tensor,
        module=origin.module or frontier.module,
        caller=origin.caller or None if origin.behind and not state.ended else None,
        evidence=_evidence(state),
        **lifecycle_fields(opened),
    )


def _evidence(state: State) -> dict[str, Any]:
    frontier, origin = state.frontier, state.origin
    return {
        "loss": str(wording.number(state.value)),
        "nonfinite_losses": state.bad,
        "steps_skipped": state.skipped,
        "steps_applied": None if state.uncertain else state.applied,
        "steps_partly_applied": state.partly_applied,
        "gradients_moved": state.gradient_nonzero if state.applied else None,
        "weights_at_risk": state.at_risk or _weights_were_bad(state),
        "nonfinite_weight": _nonfinite_weight(state),
        "nonfinite_buffer": origin.tensor if origin.buffer else None,
        "nonfinite_tensors": frontier.count,
        **_origin_evidence(origin),
    }


def _origin_evidence(origin: NonfiniteOrigin) -> dict[str, Any]:
    return {
        "born_in": origin.kind or None,
        **origin.evidence(),
        "input": origin.input or None,
        "micro_batch": origin.micro_batch if origin.micro_batch >= 0 else None,
    }


def _weights_were_bad(state: State) -> bool:
    origin = state.origin
    return bool(state.weight_before) or (origin.kind == "weights" and not (origin.buffer and state.at_risk))


def _nonfinite_weight(state: State) -> str | None:
    """Returns a weight that was read and contained NaN or Inf."""
    origin = state.origin
    weight = (origin.tensor or origin.place) if origin.kind == "weights" and not origin.buffer else ""
    return state.weight_before or state.weight_after or weight or None


def _damage(state: State) -> str:
    """Describes what became of the steps, and of the weights."""
    if state.ended:
        return f" The program ended in this step{state.ended}; no optimizer stepped."
    if _weights_were_bad(state):
        return _bad_before(state)
    if state.at_risk:
        return _applied_unsafely(state)
    if state.uncertain:
        steps = "this step" if state.bad == 1 else f"{state.uncertain} of these steps"
        return (
            f" The program has a loss scale of its own, and whether it applied or skipped {steps} was not seen; no"
            " reading has found NaN or Inf in the weights since."
        )
    if state.applied:
        zero = " and zero, so such a step does not learn from the loss" if not state.gradient_nonzero else ""
        steps = "The step was" if state.applied == 1 else f"{state.applied} such steps were"
        return f" {steps} applied; the gradients that were read there were finite{zero}."
    if state.partly_applied:
        steps = wording.count(state.partly_applied, "such step")
        return f" In {steps} one optimizer was skipped and another one stepped and changed its weights."
    if state.skipped:
        steps = "The step was" if state.skipped == 1 else "These steps were"
        return f" {steps} skipped, so no weight was changed; buffers (running statistics) were not read."
    return " No optimizer step with it was seen."


def _bad_before(state: State) -> str:
    origin = state.origin
    if origin.buffer and not state.weight_before:
        return f" {origin.tensor}, a buffer of the model, contains NaN or Inf, which reaches each of these losses."
    tensor = state.weight_before or origin.tensor or origin.place
    return (
        f" The weights contained NaN or Inf before, {tensor} among them, and a batch that uses it has no finite loss."
    )


def _applied_unsafely(state: State) -> str:
    """Describes applied steps whose gradients were not known to be finite."""
    one = state.applied == 1
    step, its, them = ("The step was", "its", "it") if one else (f"{state.applied} such steps were", "their", "them")
    scaler = "" if state.scaled else f" No GradScaler is in use that would have skipped {them}."
    gradients = f"and {its} gradients were not read" if state.unread else "with non-finite gradients"
    if state.weight_after:
        weights = f"since then the weights contain NaN or Inf, {state.weight_after} among them"
        return f" {step} applied {gradients}; {weights}.{scaler}"
    return f" {step} applied {gradients}. No reading has found NaN or Inf in the weights since.{scaler}"


def _fix(state: State) -> str:
    first = state.opened.first
    if _weights_were_bad(state) or state.weight_after:
        check = "check it with torch.isfinite before you continue"
        more = "" if _weights_were_bad(state) else f" {_check(state)}"
        return f"Stop the run and restore {wording.earlier(first)}; {check}.{more}"
    if state.at_risk:
        weights = f"Check the weights with torch.isfinite; if one is not finite, restore {wording.earlier(first)}."
        return f"{weights} {_check(state)}"
    if state.applied and not state.gradient_nonzero:
        return f"Stop the run: steps with zero gradients are wasted. {_check(state)}"
    return _check(state)


def _check(state: State) -> str:
    """Names the place to check, by the origin."""
    origin = state.origin
    if origin.kind == "input":
        sample = f", sample {origin.sample}," if origin.sample >= 0 else ""
        return (
            f"Check the data of step {origin.step}: {origin.argument}{sample} contains NaN or Inf. Remove or clamp such"
            " samples where they are loaded."
        )
    if origin.kind and origin.op != "loss" and "Loss" not in origin.op:  # such as NllLossBackward0
        return (
            f"Check {origin.place} for an overflow above 65504 in float16, a division by zero, the log or root of zero,"
            " or a softmax over -Inf alone. Run it in float32 with torch.autocast(..., enabled=False), or clamp its"
            " input."
        )
    return (
        f"Check the batch of step {state.opened.first} and the loss function: a mean over no targets (all ignored), log"
        " or division by zero, logits above 65504 in float16. Compute the loss in float32."
    )


VERDICT = Verdict(
    id="nonfinite-loss",
    severity="page",
    title="The loss is not finite",
    question="Is the training loss NaN or Inf?",
    columns=(
        *("loss", "loss_backward", "skipped", "applied", "scale"),
        *("grad_norm", "grad_nonfinite", "grad.norm", "grad.infs"),
    ),
    events=("scaler.seen", "gradient.nonfinite", "origin.found", "weights.nonfinite", "step.unfinished"),
    state=State,
    judge=judge,
    explains=(
        *("nonfinite-gradient", "scale-collapse", "overflow-storm", "gradient-underflow", "nonfinite-weights"),
        *("gradients-not-reset", "lopsided-step"),
    ),
)
