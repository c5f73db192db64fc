"""nonfinite-validation: validation gives NaN or Inf while the losses of the training are finite.

Two things show it: NaN in an output of the model in evaluation, and a validation loss that the program logs. A program
may log NaN in steps without a validation, so a logged value counts only if the step before it has none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.evaluation import validation_wording
from ammeter.verdicts.evaluation.validation_wording import LOGGED, OUTPUT, Validation
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.single_event import truncated
from ammeter.wire.columns import Ints, View, measured
from ammeter.wire.frames import Bye, Event, Schema

FINITE_LOSSES = 10
"""Finite losses of applied steps after the validation that open the verdict, as many as for `poisoned-buffers`: until
then the weights may be the fault. The end of a run opens it with those that it has."""

MIN_DISTANCE_STEPS = 2
"""Steps between two logged values of a validation. A value in every step may stand for a validation that was not
made."""

MAX_NAMES = 8
"""Logged validation losses that are followed."""

_SUBJECTS = frozenset({"val", "valid", "validation", "eval", "evaluation", "dev", "test", "heldout"})
_OTHERS = frozenset({"best", "min", "lowest", "train"})
"""Words of a name beside `loss`: those of a validation, and those of a value that may be infinite at first."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    found: Validation = Validation()
    is_bad: bool = False
    """`found`: the first validation with NaN or Inf of the last series; `is_bad`: whether the series goes on."""
    losses: int = 0
    """Finite losses of applied steps since then, until the verdict opens."""
    finite_since: int = -1
    """Step of the first of the finite losses without another one since; -1 if the last loss was not finite."""
    outputs_finite: int = -1
    """Step of the first evaluation of a series in which the outputs that were read had no NaN; -1 if there is none."""
    good: int = -1
    """Step of the last validation without NaN."""
    logged: dict[str, int] = {}
    """Logged validation loss -> step of its last value."""
    single: Validation = Validation()
    """The first logged value of a run, if it was not finite. It counts at the end."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    names = _validation_losses(view.schema.scalars)
    for part in view.parts(*VERDICT.events, "bye"):
        if isinstance(part, View):
            state = _rows(state, part, names)
        elif isinstance(part, Event):
            state = _event(state, part, view.schema)
        elif isinstance(part, Bye):
            state = _ended(state, part)
    return state, changed(_conclude, before, state)


@lru_cache(maxsize=64)
def _validation_losses(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if is_validation_loss(name))


def is_validation_loss(name: str) -> bool:
    """Whether a logged value is a loss in validation, by the words of its name."""
    words = set(re.split(r"[^a-z]+", name.lower()))
    return "loss" in words and not words.isdisjoint(_SUBJECTS) and words.isdisjoint(_OTHERS)


def _event(state: State, event: Event, schema: Schema) -> State:
    if event.name == "values.logged":
        for name, value in event.data.items():
            if is_validation_loss(name) and isinstance(value, int | float):
                state = _logged(state, name, event.step, float(value))
        return state
    step = event.data.get("step")
    step = step if isinstance(step, int) and 0 <= step <= event.step else event.step
    if event.name == "evaluation.finite":
        state = replace(state, outputs_finite=step, good=step)
        return _over(state) if state.is_bad and state.found.source == OUTPUT else state
    data = {name: truncated(value) for name, value in event.data.items()}
    dtypes = [tensor.dtype for tensor in schema.tensors]
    trained_in = max(dtypes, key=dtypes.count, default="")
    found = state.found if state.is_bad else Validation(first=step)
    found = replace(found, source=OUTPUT, data=data, trained_in=trained_in)
    return _bad(replace(state, outputs_finite=-1), found, event.step)


def _logged(state: State, name: str, step: int, value: float) -> State:
    known = state.logged.get(name, -1)
    if step <= known or (known < 0 and len(state.logged) >= MAX_NAMES):
        return state
    state = replace(state, logged={**state.logged, name: step})
    if math.isfinite(value):
        state = replace(state, good=step, single=Validation())
        return _over(state) if state.found.source == LOGGED and state.found.name == name else state
    found, single = Validation(LOGGED, step, name, value), state.single
    if known < 0:
        return replace(state, single=found)
    state = replace(state, single=Validation())
    if step - known < MIN_DISTANCE_STEPS:
        return state
    if state.is_bad:
        return _bad(state, state.found if state.found.name else replace(state.found, name=name, value=value), step)
    return _bad(state, single if single.name == name else found, step)


def _bad(state: State, found: Validation, step: int) -> State:
    losses = state.losses if state.is_bad else 0
    return replace(state, found=found, is_bad=True, losses=losses, opened=state.opened.until(step))


def _over(state: State) -> State:
    return replace(state, is_bad=False, opened=state.opened.over())


def _rows(state: State, rows: View, names: Sequence[str]) -> State:
    """Reads rows up to each logged value, and the value.

    While everything is finite, the last value of each name says as much as all of them.
    """
    measured_at = {name: np.flatnonzero(measured(rows.scalar(name))) for name in names}
    if _is_healthy(state, rows, measured_at):
        measured_at = {name: at[-1:] for name, at in measured_at.items()}
    stops = sorted({int(row) for at in measured_at.values() for row in at})
    begin = 0
    for at in stops:
        state = _losses(state, _section(rows, begin, at + 1))
        for name in names:
            value = rows.scalar(name)[at : at + 1]
            if measured(value)[0]:
                state = _logged(state, name, int(rows.steps[at]), float(value[0]))
        begin = at + 1
    return _losses(state, _section(rows, begin, len(rows))) if begin < len(rows) else state


def _is_healthy(state: State, rows: View, measured_at: Mapping[str, Ints]) -> bool:
    """Whether nothing was wrong before these rows, and all their losses are finite."""
    healthy = not state.found.source and state.finite_since >= 0 and rows.has_finite_losses
    return (
        healthy
        and len(state.logged.keys() | measured_at.keys()) <= MAX_NAMES
        and all(np.isfinite(rows.scalar(name)[at]).all() for name, at in measured_at.items())
    )


def _section(rows: View, begin: int, end: int) -> View:
    """The rows from begin to end; all of them are the same View, because it caches the loss for all verdicts."""
    return rows.rows(begin, end) if begin or end < len(rows) else rows


def _losses(state: State, rows: View) -> State:
    """Counts the finite losses after a bad validation."""
    counts = state.is_bad and not state.opened.active
    if state.finite_since >= 0 and not counts and rows.has_finite_losses:
        return state
    losses = rows.loss()
    is_finite = np.isfinite(losses)
    bad = np.flatnonzero(measured(losses) & ~is_finite)
    if bad.size or state.finite_since < 0:
        good = np.flatnonzero(is_finite)
        good = good[good > bad[-1]] if bad.size else good
        state = replace(state, finite_since=int(rows.steps[good[0]]) if good.size else -1)
    if not counts:
        return state
    count, unusable = state.losses, set(bad.tolist())
    for at, (step, (loss, applied)) in enumerate(rows.records("loss", "applied")):
        if at in unusable:
            count = 0
        count += math.isfinite(loss) and applied > 0 and step > state.found.first
        if count >= FINITE_LOSSES:
            return replace(state, losses=count, opened=state.opened.at(state.found.first, step))
    return replace(state, losses=count) if count != state.losses else state


def _ended(state: State, bye: Bye) -> State:
    """Opens the verdict at the end of a run whose losses were finite up to the validation."""
    found = state.found if state.is_bad else state.single
    if not found.source or state.opened.active or state.finite_since < 0:
        return state
    return replace(state, found=found, is_bad=True, opened=state.opened.at(found.first, max(found.first, bye.step)))


def _conclude(state: State) -> Finding:
    found = state.found
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=validation_wording.title(found, state.opened),
        cause=validation_wording.cause(found, state.opened, state.losses, state.finite_since, state.outputs_finite),
        fix=validation_wording.fix(found, state.outputs_finite),
        module=found.origin.get("module") or None,
        tensor=found.origin.get("tensor") or None,
        caller=found.data.get("caller") or None,
        evidence={
            **found.evidence(),
            "finite_losses": state.losses,
            "last_finite_validation": state.good if state.good >= 0 else None,
        },
        **lifecycle_fields(state.opened),
    )


VERDICT = Verdict(
    id="nonfinite-validation",
    severity="ticket",
    title="Validation is not finite",
    question="Is validation NaN or Inf while the losses of the training are finite?",
    columns=("val_loss", "loss", "loss_backward", "applied"),
    events=("evaluation.nonfinite", "evaluation.finite", "values.logged"),
    state=State,
    history=("val_loss", "loss"),
    judge=judge,
    explains=("validation-drift",),
)
