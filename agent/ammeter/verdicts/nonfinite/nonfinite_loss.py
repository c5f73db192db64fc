"""nonfinite-loss: the training loss is NaN or Inf."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework import gradient_frontier as origin
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.gradient_frontier import Origin
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.nonfinite import origin_event as born
from ammeter.verdicts.nonfinite.origin_event import NonfiniteOrigin
from ammeter.wire.columns import View, measured
from ammeter.wire.frames import Event

RECOVERED = 10
"""Finite losses of applied steps in a row that close the verdict. Losses without an applied step do not count, because
they repair nothing."""

REPEATED = 2
"""Non-finite losses before RECOVERED finite ones that raise the severity to `page`. They do so although no weight was
changed. A single one that the scaler skipped, one bad batch, can wait until the morning."""


Gradients = Literal["finite", "broken", "unread"]


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    bad: int = 0
    skipped: int = 0
    applied: int = 0
    poisoned: bool = False
    """`poisoned`: a step was applied whose gradients were not known to be finite. `unread`: nor were they known to be
    non-finite."""
    unread: bool = False
    value: float = math.nan
    finite: int = 0
    scaled: bool = False
    origin: Origin = Origin()
    born: NonfiniteOrigin = NonfiniteOrigin()
    weights: str = ""
    """A weight that was non-finite before this series. No step of the series was applied."""
    harmed: str = ""
    """A non-finite weight that was read after a step of this series was applied."""
    parted: int = 0
    """Steps of this series that the scaler skipped for one optimizer and not for another."""
    moved: bool = False
    """Whether a gradient of an applied step was read and was not zero."""
    column: str = ""
    """The name of the loss, if the run has several."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("gradient.nonfinite", "origin.found", "weights.nonfinite"):
        if isinstance(part, View):
            state = _rows(state, part)
        elif isinstance(part, Event):
            state = _event(state, part)
    return state, changed(_conclude, before, state)


def _event(state: State, event: Event) -> State:
    if event.name == "weights.nonfinite":
        return _weights(state, event)
    if not state.opened.active:
        return state
    if event.name == "gradient.nonfinite":
        told = state.origin.count > 0
        return state if told else replace(state, origin=origin.of_event(event.step, event.data), unread=False)
    found = born.of_event(event)
    own_harm = found.kind == "weights" and state.poisoned
    if state.born.kind or own_harm or found.kind == "backward" or found.first < state.opened.first:
        return state
    return replace(state, born=found)


def _weights(state: State, event: Event) -> State:
    tensors = event.data.get("tensors") or ["a weight"]
    name = str(tensors[0])[: born.MAX_NAME_CHARS]
    if state.poisoned:
        return replace(state, unread=False, harmed=state.harmed or name)
    return replace(state, weights=state.weights or name)


def _rows(state: State, rows: View) -> State:
    losses = rows.loss()
    bad = measured(losses) & ~np.isfinite(losses)
    if not state.opened.active and not bad.any():
        return state
    gradients = measured(rows.scalar("grad_norm"))
    broken = (gradients & ~np.isfinite(rows.scalar("grad_norm"))) | (rows.scalar("grad_nonfinite") > 0)
    records = rows.records("loss", "skipped", "applied", "scale", "grad_norm")
    for at, (step, (loss, skipped, applied, scale, norm)) in enumerate(records):
        if bad[at]:
            read: Gradients = "broken" if broken[at] else "finite" if gradients[at] else "unread"
            column = state.column if state.opened.active else rows.loss_at(at)
            state = replace(_bad(state, step, loss, skipped > 0, applied > 0, read), column=column)
            moved = applied > 0 and bool(gradients[at]) and norm > 0
            state = replace(state, scaled=state.scaled or scale >= 0, moved=state.moved or moved)
            if broken[at] and not state.origin.count and (place := origin.of_row(rows, at)):
                state = replace(state, origin=place)
        elif math.isfinite(loss) and applied > 0 and state.opened.active:
            state = replace(state, finite=state.finite + 1)
            if state.finite >= RECOVERED:
                state = replace(state, opened=state.opened.over(), weights="")
    return state


def _bad(state: State, step: int, loss: float, skipped: bool, applied: bool, gradients: Gradients) -> State:
    if not state.opened.active:
        state = State(opened=state.opened, value=loss, weights=state.weights)
    parted, applied = applied and skipped, applied and not skipped
    harmed = applied and gradients != "finite"
    return replace(
        state,
        opened=state.opened.at(step, step),
        bad=state.bad + 1,
        skipped=state.skipped + skipped,
        applied=state.applied + applied,
        parted=state.parted + parted,
        poisoned=state.poisoned or harmed,
        unread=gradients != "broken" and (state.unread if state.poisoned else harmed),
        finite=0,
    )


def _conclude(state: State) -> Finding:
    opened, place, source = state.opened, state.origin, state.born
    name, which = str(wording.number(state.value)), wording.of_loss(state.column)
    since = f"at step {opened.first}" if state.bad == 1 else f"{state.bad} times {opened.since}"
    page = state.applied > 0 or state.bad >= REPEATED or not state.scaled or _weights_were_bad(state)
    return Finding(
        verdict=VERDICT.id,
        severity="page" if page else "ticket",
        title=f"Loss{which} is {'NaN' if math.isnan(state.value) else 'infinite'} at step {opened.first}",
        cause=f"The training loss{which} was {name} {since}.{_damage(state)}{source.words() or place.words()}",
        fix=_fix(state),
        tensor=source.tensor or state.weights or place.tensor,
        module=source.module or place.module,
        evidence={
            "loss": name,
            "nonfinite_losses": state.bad,
            "steps_skipped": state.skipped,
            "steps_applied": state.applied,
            "steps_partly_applied": state.parted,
            "gradients_moved": state.moved if state.applied else None,
            "weights_at_risk": state.poisoned or _weights_were_bad(state),
            "nonfinite_weight": _nonfinite_weight(state),
            "nonfinite_buffer": source.tensor if source.buffer else None,
            "nonfinite_tensors": place.count,
            "born_in": source.kind or None,
            "op": source.op or None,
            "input": source.input or None,
            "micro_batch": source.micro_batch if source.micro_batch >= 0 else None,
            "last_finite_absmax": source.absmax if source.absmax >= 0 else None,
        },
        **lifecycle_fields(opened),
    )


def _weights_were_bad(state: State) -> bool:
    return not state.poisoned and (bool(state.weights) or state.born.kind == "weights")


def _nonfinite_weight(state: State) -> str | None:
    """Returns a weight that was read and contained NaN or Inf."""
    seen = (state.born.tensor or state.born.place) if state.born.kind == "weights" and not state.born.buffer else ""
    return state.weights or state.harmed or seen or None


def _damage(state: State) -> str:
    if _weights_were_bad(state):
        if state.born.buffer and not state.weights:
            return f" {state.born.tensor}, a buffer of the model, holds NaN or Inf, so it came into every such loss."
        tensor = state.weights or state.born.tensor or state.born.place
        return (
            f" The weights hold NaN or Inf themselves, {tensor} among them: a batch that meets it has no finite loss."
        )
    if state.poisoned:
        scaler = "" if state.scaled else " No scaler is in use that would have skipped it."
        step, its = ("The step was", "its") if state.applied == 1 else (f"{state.applied} such steps were", "their")
        with_what = f"and {its} gradients were not read" if state.unread else "with gradients that are not finite"
        if state.harmed:
            return (
                f" {step} applied {with_what}, and the weights are poisoned: {state.harmed} holds NaN or Inf.{scaler}"
            )
        return (
            f" {step} applied {with_what}. The weights were not seen to hold NaN or Inf since; torch.isfinite over"
            f" model.parameters() tells.{scaler}"
        )
    if state.applied:
        zero = "" if state.moved else " and zero, so nothing was learnt from it"
        many = "The step was" if state.applied == 1 else f"{state.applied} such steps were"
        return f" {many} applied; the gradients that were read there were finite{zero}."
    if state.parted:
        many = wording.count(state.parted, "such step")
        return f" In {many} the scaler skipped one optimizer and another one stepped: what that one trains has changed."
    if state.skipped:
        it = "it" if state.skipped == 1 else "these steps"
        return f" The scaler skipped {it}, so no weight was changed; buffers (running statistics) were not read."
    return " No step of the optimizer was seen with it."


def _fix(state: State) -> str:
    first = state.opened.first
    if _weights_were_bad(state) or state.harmed:
        check = "check it with torch.isfinite before you go on"
        look = "" if _weights_were_bad(state) else f" {_look(state)}"
        return f"Stop the run and restore {wording.earlier(first)}; {check}.{look}"
    if state.poisoned:
        check = f"Check the weights with torch.isfinite: if one is not finite, restore {wording.earlier(first)}."
        return f"{check} {_look(state)}"
    if state.applied and not state.moved:
        return f"Stop the run: it wastes its steps. {_look(state)}"
    return _look(state)


def _look(state: State) -> str:
    source = state.born
    if source.kind == "input":
        sample = f", sample {source.sample}," if source.sample >= 0 else ""
        return (
            f"Look at the data of step {source.step}: {source.argument}{sample} is not finite. Leave such samples out"
            " where they are loaded, or clamp them."
        )
    if source.kind and source.op != "loss" and "Loss" not in source.op:  # such as NllLossBackward0
        return (
            f"Look at {source.place}: an overflow above 65504 in float16, a division by zero, the log or root of zero,"
            " a softmax over nothing but -Inf. Run it in float32 with torch.autocast(..., enabled=False), or clamp what"
            " goes in."
        )
    return (
        f"Look at the batch of step {state.opened.first} and at the loss: a mean over nothing (all targets ignored),"
        " log or division by zero, logits above 65504 in float16. Compute the loss in float32."
    )


VERDICT = Verdict(
    id="nonfinite-loss",
    severity="page",
    title="The loss is not finite",
    question="Is the training loss NaN or Inf?",
    columns=(
        "loss",
        "loss_backward",
        "skipped",
        "applied",
        "scale",
        "grad_norm",
        "grad_nonfinite",
        "grad.norm",
        "grad.infs",
    ),
    events=("gradient.nonfinite", "origin.found", "weights.nonfinite"),
    state=State,
    judge=judge,
    explains=(
        "nonfinite-gradient",
        "scale-collapse",
        "overflow-storm",
        "gradient-underflow",
        "nonfinite-weights",
        "gradients-not-reset",
        "lopsided-step",
    ),
)
