"""poisoned-buffers: training goes on with finite losses while a buffer of the model contains NaN or Inf.

A program may fill other buffers than running averages with NaN or Inf by design, such as a mask. These count only if a
loss was bad between their last finite reading and the first other one.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict, module_of
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.single_event import MAX_PATH_CHARS, path_of
from ammeter.wire.columns import View, measured
from ammeter.wire.frames import Event

FINITE_LOSSES = 10
"""Finite losses of applied steps after the reading that open the verdict. As many close `nonfinite-loss`: until then
the batches or the weights may be the fault."""

MAX_NAME_CHARS = 160
"""Maximum characters of a stored name."""

MAX_NAMES = 4
"""Names of tensors that are stored."""

MOMENTUM = 0.1
"""Momentum of torch's normalization layers, unless the program sets another one: after 10 / momentum steps, less than
5e-5 is left of an average's first value."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    read: int = -1
    """Step of the first reading with NaN or Inf; -1 if the last reading was finite."""
    tensor: str = ""
    statistics: bool = True
    """Whether `tensor` is a running average of a normalization layer."""
    count: int = 0
    last_finite: int = -1
    bad_loss: int = -1
    """Last step with a non-finite loss up to the reading."""
    losses: int = 0
    """Finite losses of applied steps since the reading, until the verdict opens."""
    weights_read: int = -1
    """Last step since the reading at which the weights that were read were finite."""
    good: str = ""
    good_step: int = -1
    spoilt: str = ""
    """`good`: newest checkpoint from before the reading, which is not overwritten since. `spoilt`: newest one since."""
    others: tuple[str, ...] = ()
    """Names of further tensors with NaN or Inf, of the first MAX_NAMES."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("buffers.nonfinite", "buffers.finite", "checkpoint.saved"):
        if isinstance(part, View):
            state = _rows(state, part)
        elif isinstance(part, Event):
            state = _event(state, part)
    return state, changed(_conclude, before, state)


def _event(state: State, event: Event) -> State:
    if event.name == "checkpoint.saved":
        return _saved(state, event)
    if event.name == "buffers.finite":
        return replace(state, opened=state.opened.over(), read=-1, losses=0, weights_read=-1, spoilt="")
    data = event.data
    name, *others = (str(name)[:MAX_NAME_CHARS] for name in (data.get("tensors") or ["a buffer"])[:MAX_NAMES])
    count = data.get("count")
    state = replace(state, count=count if isinstance(count, int) else 1, opened=state.opened.until(event.step))
    if state.read >= 0 and _counts(state):
        return state
    last = data.get("last_finite")
    last = last if isinstance(last, int) else -1
    statistics = data.get("statistics") is not False
    state = replace(state, read=event.step, tensor=name, others=tuple(others))
    return replace(state, statistics=statistics, last_finite=last, losses=0)


def _counts(state: State) -> bool:
    """Whether NaN or Inf in this buffer is not the program's intention."""
    return state.statistics or max(state.last_finite, 0) <= state.bad_loss <= state.read


def _saved(state: State, event: Event) -> State:
    path, contents = path_of(event.data), event.data.get("contents") or {}
    if not path or not contents.get("weights") or len(path) > MAX_PATH_CHARS:
        return state
    if state.read < 0:
        return replace(state, good=path, good_step=event.step)
    kept = {} if state.good != path else {"good": "", "good_step": -1}
    return replace(state, spoilt=path, **kept)


def _rows(state: State, rows: View) -> State:
    if state.read < 0 and rows.has_finite_losses:
        return state
    losses = rows.loss()
    bad = measured(losses) & ~np.isfinite(losses)
    if state.read < 0 or not _counts(state):
        at_reading = bad & (rows.steps <= state.read)
        bad_steps = rows.steps[at_reading if at_reading.any() else bad]
        state = replace(state, bad_loss=int(bad_steps[-1])) if bad_steps.size else state
        if state.read < 0 or not _counts(state):
            return state
    if state.opened.active:
        return state
    records = rows.records("loss", "applied", "weights_nonfinite")
    for at, (step, (loss, applied, nonfinite)) in enumerate(records):
        if bad[at] or nonfinite > 0:
            bad_loss = step if bad[at] and step <= state.read else state.bad_loss
            state = replace(state, losses=0, bad_loss=bad_loss)
        elif step > state.read:
            state = replace(state, weights_read=step) if nonfinite == 0 else state
            if math.isfinite(loss) and applied > 0:
                state = replace(state, losses=state.losses + 1)
        if state.losses >= FINITE_LOSSES:
            return replace(state, opened=state.opened.at(state.read, step))
    return state


def _conclude(state: State) -> Finding:
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"{_what(state)} of {_modules(state)} {_contain(state)} NaN or Inf",
        cause=_cause(state),
        fix=_fix(state),
        tensor=state.tensor,
        module=module_of(state.tensor),
        evidence={
            "nonfinite_buffer": state.tensor,
            "buffers": state.count,
            "last_finite_step": state.last_finite if state.last_finite >= 0 else None,
            "nonfinite_loss_at_step": state.bad_loss if _has_bad_loss(state) else None,
            "finite_losses": FINITE_LOSSES,
            "weights_read_finite": state.weights_read if state.weights_read >= 0 else None,
            "checkpoint": state.good or None,
            "checkpoint_step": state.good_step if state.good else None,
            "checkpoint_with_nonfinite": state.spoilt or None,
        },
        **lifecycle_fields(state.opened),
    )


def _has_bad_loss(state: State) -> bool:
    return max(state.last_finite, 0) <= state.bad_loss <= state.opened.first


def _what(state: State) -> str:
    kind = "running average" if state.statistics else "buffer"
    return f"A {kind}" if state.count == 1 else f"{state.count} {kind}s"


def _contain(state: State) -> str:
    return "contains" if state.count == 1 else "contain"


def _modules(state: State) -> str:
    """Returns the modules of the tensors whose names are known."""
    names = list(dict.fromkeys(module_of(name) or "the model" for name in (state.tensor, *state.others)))
    more = " and others" if state.count > 1 + len(state.others) else ""
    return f"{', '.join(names)}{more}" if more or len(names) == 1 else wording.listed(names)


def _names(state: State) -> str:
    """Returns the tensors' names, without the module if they are all of one."""
    names = [state.tensor, *state.others]
    modules = {module_of(name) for name in names}
    more = state.count - len(names)
    if len(modules) > 1 or None in modules or more > 0:
        return ", ".join(names) + (f" and {wording.count(more, 'other buffer')}" if more > 0 else "")
    return f"{wording.listed([name.rpartition('.')[2] for name in names])} of {_modules(state)}"


def _cause(state: State) -> str:
    first = state.opened.first
    finite = f"; at step {state.last_finite} they were finite" if state.last_finite >= 0 else ""
    loss = f" The loss of step {state.bad_loss} was not finite." if _has_bad_loss(state) else ""
    weights = (
        f" The weights that were read at step {state.weights_read} were finite." if state.weights_read >= 0 else ""
    )
    saved = f" {state.spoilt} was saved with it." if state.spoilt else ""
    use = (
        f" The model in eval() computes with {'it' if state.count == 1 else 'them'}, so validation and a checkpoint of"
        " this state are not usable. Training uses the statistics of the batch and does not show it"
        if state.statistics
        else " A forward pass that uses the buffer gives NaN or Inf. Training goes on"
    )
    buffers = "The buffer" if state.count == 1 else "The buffers"
    return (
        f"{buffers} {_names(state)} {_contain(state)} NaN or Inf, read at step {first}{finite}.{loss}{use}:"
        f" {FINITE_LOSSES} losses of applied steps after it were finite.{weights}{saved}"
    )


def _fix(state: State) -> str:
    load = f", or load it from {state.good}, saved at step {state.good_step}" if state.good else ""
    batch = state.bad_loss if _has_bad_loss(state) else state.opened.first
    reset = (
        f"Call reset_running_stats() on {_modules(state)}{load.replace(' it ', ' the averages ')}, and train about"
        f" {10 / MOMENTUM:.0f} steps before the next evaluation (10 / momentum; torch's momentum is {MOMENTUM:g})."
        if state.statistics
        else f"Set {state.tensor} again as at the start{load}."
    )
    return (
        f"{reset} Then check the batches up to step {batch} for NaN, Inf and values whose square overflows, and leave"
        " such a batch out before its forward pass: a scaler that skips the step does not undo the buffer."
    )


VERDICT = Verdict(
    id="poisoned-buffers",
    severity="ticket",
    title="A buffer of the model is not finite",
    question="Does training go on while a buffer, such as a running average of BatchNorm, contains NaN or Inf?",
    columns=("loss", "loss_backward", "applied", "weights_nonfinite"),
    events=("buffers.nonfinite", "buffers.finite", "checkpoint.saved"),
    state=State,
    judge=judge,
    explains=("nonfinite-loss", "nonfinite-gradient", "nonfinite-weights", "nonfinite-validation", "validation-drift"),
)
