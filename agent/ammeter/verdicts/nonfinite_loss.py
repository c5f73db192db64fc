"""nonfinite-loss: the training loss is NaN or Inf."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.block import View, measured
from ammeter.verdicts import born, origin, words
from ammeter.verdicts.born import Born
from ammeter.verdicts.finding import Finding, Verdict
from ammeter.verdicts.opened import Opened, changed, found
from ammeter.verdicts.origin import Origin
from ammeter.wire import Event

RECOVERED = 10
"""Finite losses in a row after which it is over."""

REPEATED = 2
"""Non-finite losses before RECOVERED finite ones that wake a person although no weight was touched. A single one
that the scaler skipped, one bad batch, can wait for the morning."""


Gradients = Literal["finite", "broken", "unread"]


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Opened = Opened()
    bad: int = 0
    skipped: int = 0
    applied: int = 0
    poisoned: bool = False
    """Whether a step was applied whose gradients were not known to be finite; `unread`: nor known not to be."""
    unread: bool = False
    value: float = math.nan
    finite: int = 0
    scaled: bool = False
    origin: Origin = Origin()
    born: Born = Born()
    weights: str = ""
    """A weight that is not finite although no step of this series was applied: it was so before."""


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
        return replace(state, unread=False) if state.poisoned else _weights(state, event)
    if not state.opened.active:
        return state
    if event.name == "gradient.nonfinite":
        told = state.origin.count > 0
        return state if told else replace(state, origin=origin.of_event(event.step, event.data), unread=False)
    found = born.of_event(event)
    own_harm = found.kind == "weights" and state.poisoned
    if state.born.kind or own_harm or found.first < state.opened.first:
        return state
    return replace(state, born=found)


def _weights(state: State, event: Event) -> State:
    tensors = event.data.get("tensors") or ["a weight"]
    return replace(state, weights=state.weights or str(tensors[0])[: born.LONGEST])


def _rows(state: State, rows: View) -> State:
    losses = rows.scalar("loss")
    bad = measured(losses) & ~np.isfinite(losses)
    if not state.opened.active and not bad.any():
        return state
    gradients = measured(rows.scalar("grad_norm"))
    broken = (gradients & ~np.isfinite(rows.scalar("grad_norm"))) | (rows.scalar("grad_nonfinite") > 0)
    records = rows.records("loss", "skipped", "applied", "scale")
    for at, (step, (loss, skipped, applied, scale)) in enumerate(records):
        if bad[at]:
            read: Gradients = "broken" if broken[at] else "finite" if gradients[at] else "unread"
            state = _bad(state, step, loss, skipped > 0, applied > 0 and not skipped > 0, read)
            state = replace(state, scaled=state.scaled or scale >= 0)
            if broken[at] and not state.origin.count and (place := origin.of_row(rows, at)):
                state = replace(state, origin=place)
        elif math.isfinite(loss) and state.opened.active:
            state = replace(state, finite=state.finite + 1)
            if state.finite >= RECOVERED:
                state = replace(state, opened=state.opened.over(), weights="")
    return state


def _bad(state: State, step: int, loss: float, skipped: bool, applied: bool, gradients: Gradients) -> State:
    if not state.opened.active:
        state = State(opened=state.opened, value=loss, weights=state.weights)
    harmed = applied and gradients != "finite"
    return replace(
        state,
        opened=state.opened.at(step, step),
        bad=state.bad + 1,
        skipped=state.skipped + skipped,
        applied=state.applied + applied,
        poisoned=state.poisoned or harmed,
        unread=gradients != "broken" and (state.unread if state.poisoned else harmed),
        finite=0,
    )


def _conclude(state: State) -> Finding:
    opened, place, source = state.opened, state.origin, state.born
    name = str(words.number(state.value))
    since = f"at step {opened.first}" if state.bad == 1 else f"{state.bad} times since step {opened.first}"
    page = state.applied > 0 or state.bad >= REPEATED or not state.scaled or _weights_were_bad(state)
    return Finding(
        verdict=VERDICT.id,
        severity="page" if page else "ticket",
        title=f"Loss is {'NaN' if math.isnan(state.value) else 'infinite'} at step {opened.first}",
        cause=f"The training loss was {name} {since}.{_damage(state)}{source.words() or place.words()}",
        fix=_fix(state),
        tensor=source.tensor or state.weights or place.tensor,
        module=source.module or place.module,
        evidence={
            "loss": name,
            "nonfinite_losses": state.bad,
            "steps_skipped": state.skipped,
            "steps_applied": state.applied,
            "weights_at_risk": state.poisoned or _weights_were_bad(state),
            "nonfinite_tensors": place.count,
            "born_in": source.kind or None,
            "op": source.op or None,
            "input": source.input or None,
            "micro_batch": source.micro_batch if source.micro_batch >= 0 else None,
            "last_finite_absmax": source.absmax if source.absmax >= 0 else None,
        },
        **found(opened),
    )


def _weights_were_bad(state: State) -> bool:
    return not state.poisoned and (bool(state.weights) or state.born.kind == "weights")


def _damage(state: State) -> str:
    if _weights_were_bad(state):
        tensor = state.weights or state.born.tensor or state.born.place
        return f" The weights hold NaN or Inf themselves, {tensor} among them: no batch can give a finite loss."
    if state.poisoned:
        scaler = "" if state.scaled else " No scaler is in use that would have skipped it."
        step, its = ("The step was", "its") if state.applied == 1 else (f"{state.applied} such steps were", "their")
        if state.unread:
            return f" {step} applied and {its} gradients were not read: treat the weights as poisoned.{scaler}"
        return f" {step} applied with gradients that are not finite, so the weights are poisoned.{scaler}"
    if state.applied:
        return " The gradients were finite, so no step was skipped: training goes on and learns nothing from it."
    if state.skipped:
        return f" The scaler skipped {'it' if state.skipped == 1 else 'these steps'}, so the weights are unharmed."
    return " No step of the optimizer was seen with it."


def _fix(state: State) -> str:
    first = state.opened.first
    if _weights_were_bad(state):
        return f"Stop the run and restore {words.earlier(first)}, when the weights were still finite."
    if state.poisoned:
        return f"Stop the run and restore {words.earlier(first)}. {_look(state)}"
    if state.applied:
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
    if source.kind and source.op != "loss" and "Loss" not in source.op:  # as in NllLossBackward0
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
    columns=("loss", "skipped", "applied", "scale", "grad_norm", "grad_nonfinite", "grad.norm", "grad.infs"),
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
