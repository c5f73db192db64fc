"""nonfinite-weights: the weights or the optimizer's state contain NaN or Inf."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import BEFORE_FORWARD, Finding, Verdict, module_of
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.origins import origin_event
from ammeter.verdicts.framework.readings import Readings
from ammeter.verdicts.framework.single_event import MAX_PATH_CHARS
from ammeter.wire.columns import View, measured
from ammeter.wire.frames import Event

RECOVERED_LOSSES = 10
"""Finite losses of applied steps in a row that close the verdict. A reading of finite weights must be among them: a NaN
weight that is in use makes the loss NaN. The loss does not depend on moments, so a verdict about them stays open."""

MAX_CHECKPOINTS = 3
"""Maximum number of stored paths, newest last. Weights are read at intervals, so the newest checkpoint may already
contain NaN or Inf."""

MAX_NAME_CHARS = 160
"""Maximum characters of a stored name."""

STATE_CONTAINS = "The optimizer's state contains"


class Saved(msgspec.Struct, frozen=True, array_like=True):
    path: str
    step: int


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    first_bad_loss: int = -1
    """`first_bad_loss`: first of the present row of non-finite losses. `bad_step_applied`: whether such a step was
    applied."""
    bad_step_applied: bool = False
    tensor: str = ""
    count: int = 0
    last_finite: int = -1
    moment: str = ""
    moments: int = 0
    finite: int = 0
    clean: bool = False
    saved: tuple[Saved, ...] = ()
    deduced: int = -1
    """First non-finite loss of a row without applied steps. It is set if the start of the damage was deduced from
    it."""
    used: str = ""
    """A weight with which the forward pass of the first bad step was computed, if it was read before the step ended."""
    last_finite_part: int = -1
    """Step of the last finite reading if it was of a part of the weights only; `last_finite` is then -1."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts(*VERDICT.events):
        if isinstance(part, View):
            state = _rows(state, part)
        elif isinstance(part, Event) and part.name == "checkpoint.saved":
            state = _saved(state, part)
        elif isinstance(part, Event) and part.name == "origin.found":
            state = _used(state, part)
        elif isinstance(part, Event):
            state = _nonfinite(state, part)
    return state, changed(_conclude, before, state)


def _rows(state: State, rows: View) -> State:
    losses = rows.loss()
    bad = measured(losses) & ~np.isfinite(losses)
    if state.first_bad_loss < 0 and not state.opened.active and not bad.any():
        return state
    records = rows.records("loss", "applied", "skipped", "weights_nonfinite")
    for at, (step, (loss, applied, skipped, nonfinite)) in enumerate(records):
        if bad[at]:
            bad_step_applied = state.bad_step_applied or not (skipped > 0 and applied == 0)
            state = replace(
                state,
                first_bad_loss=state.first_bad_loss if state.first_bad_loss >= 0 else step,
                bad_step_applied=bad_step_applied,
                finite=0,
            )
        elif math.isfinite(loss):
            state = _finite(state, nonfinite, applied > 0)
    return state


def _finite(state: State, nonfinite: float, applied: bool) -> State:
    if not state.opened.active:
        return replace(state, first_bad_loss=-1, bad_step_applied=False)
    if nonfinite > 0:
        return replace(state, first_bad_loss=-1, bad_step_applied=False, finite=0, clean=False)
    finite, clean = state.finite + applied, state.clean or nonfinite == 0
    state = replace(state, first_bad_loss=-1, bad_step_applied=False, finite=finite, clean=clean)
    over = finite >= RECOVERED_LOSSES and clean and not state.moment
    return replace(state, opened=state.opened.over()) if over else state


def _nonfinite(state: State, event: Event) -> State:
    """Opens or extends the finding.

    Losses whose steps the scaler skipped did not change the weights, so the weights were bad before the first of them.
    """
    before = state.first_bad_loss >= 0 and not state.bad_step_applied
    if not state.opened.active:
        state = replace(_reset(state), deduced=state.first_bad_loss if before else -1)
    first = state.first_bad_loss if before else event.step
    state = replace(state, opened=state.opened.at(min(first, event.step), event.step), finite=0, clean=False)
    data = event.data
    name, count = str((data.get("tensors") or ["one"])[0])[:MAX_NAME_CHARS], data.get("count", 1)
    if event.name == "moments.nonfinite":
        return state if state.moment else replace(state, moment=name, moments=count)
    last, last_part = (_step(data.get(key)) for key in ("last_finite", "last_finite_part"))
    if state.tensor:  # a reading of all weights at the step of that of some
        is_same_step = event.step == state.opened.step
        return replace(state, count=max(count, state.count)) if is_same_step else state
    return replace(state, tensor=name, count=count, last_finite=last, last_finite_part=last_part)


def _step(value: object) -> int:
    return value if isinstance(value, int) else -1


def _used(state: State, event: Event) -> State:
    """Opens the finding, or dates it, if the first bad step began with a non-finite weight.

    A later step of a series says nothing: an earlier one may have changed the weights.
    """
    origin = origin_event.of_event(event)
    if origin.kind != "weights" or origin.buffer or not origin.tensor or origin.first != event.step:
        return state
    if state.opened.active:
        dated = state.opened.first == event.step and state.deduced < 0
        return replace(state, used=origin.tensor) if dated else state
    opened = state.opened.at(event.step, event.step)
    return replace(_reset(state), opened=opened, used=origin.tensor, finite=0, clean=False)


def _reset(state: State) -> State:
    """Removes what is known of an earlier episode."""
    unread = replace(state, tensor="", count=0, last_finite=-1, last_finite_part=-1)
    return replace(unread, moment="", moments=0, deduced=-1, used="")


def _saved(state: State, event: Event) -> State:
    """Updates the list of checkpoints.

    Overwritten checkpoints are removed. Those written after the first bad step are bad and are not stored.
    """
    path, contents = event.data.get("path"), event.data.get("contents") or {}
    if not path or not contents.get("weights") or len(path) > MAX_PATH_CHARS:
        return state
    others = tuple(saved for saved in state.saved if saved.path != path)
    if state.opened.active:
        return state if len(others) == len(state.saved) else replace(state, saved=others)
    return replace(state, saved=(*others, Saved(path, event.step))[-MAX_CHECKPOINTS:])


def _conclude(state: State) -> Finding:
    opened = state.opened
    good = next((saved for saved in reversed(state.saved) if saved.step < _harmed(state)), None)
    weight = state.used or state.tensor
    tensor = weight or state.moment
    return Finding(
        verdict=VERDICT.id,
        severity="page",
        title=f"{f'{weight} contains' if weight else STATE_CONTAINS} NaN or Inf, read at step {opened.step}",
        cause=_cause(state),
        fix=_fix(state, good),
        tensor=tensor,
        module=module_of(tensor if weight else module_of(tensor)),
        evidence=_evidence(state, good),
        **lifecycle_fields(opened),
    )


def _were_used(state: State) -> bool:
    """Whether the first step of the finding began with non-finite weights, so they are no effect of its loss."""
    return bool(state.used) or state.deduced >= 0


def _began_before(state: State) -> bool:
    """Whether the weights were non-finite before the first step of the stream."""
    return _were_used(state) and state.opened.first == 0


def _harmed(state: State) -> int:
    """Returns the earliest step whose end may have left non-finite weights."""
    return max(0, state.opened.first - _were_used(state))


def _evidence(state: State, good: Saved | None) -> dict[str, Any]:
    part = {"last_finite_part_step": state.last_finite_part} if state.last_finite_part >= 0 else {}
    return {
        "nonfinite_weight": state.used or state.tensor or None,
        "nonfinite_moment": state.moment or None,
        "read_at_step": state.opened.step,
        "skipped_losses_from": state.deduced if state.deduced >= 0 else None,
        "weights": state.count,
        "moments": state.moments,
        "last_finite_step": state.last_finite if state.last_finite >= 0 else None,
        **part,
        "checkpoint": good.path if good else None,
        "checkpoint_step": good.step if good else None,
        BEFORE_FORWARD: _were_used(state),
    }


def _cause(state: State) -> str:
    sentences = [*_weight_sentences(state), *_moment_sentences(state)]
    effect = (
        "a loss that uses it becomes NaN or Inf" if state.used or state.tensor else "each update from it is NaN or zero"
    )
    return f"{' '.join(sentences)} Further training does not repair this: {effect}."


def _weight_sentences(state: State) -> Iterator[str]:
    if state.used:
        yield f"{state.used} contained NaN or Inf before step {state.opened.first} computed its loss."
    if state.tensor:
        contain = "weight tensor contains" if state.count == 1 else "weight tensors contain"
        named = f": {state.tensor}" if state.count == 1 else f", {state.tensor} among them"
        then = "After that step, " if state.used else ""
        yield f"{then}{state.count} {contain} NaN or Inf{named}."
    if state.last_finite >= 0:
        yield f"At step {state.last_finite} the weights that were read were finite."
    if state.last_finite_part >= 0:
        yield (
            f"At step {state.last_finite_part} the part of the weights that was read was finite; elements that were not"
            " read may have been NaN or Inf before."
        )
    if state.deduced >= 0:
        yield (
            f"The losses are non-finite from step {state.deduced} on and each of these steps was skipped, so the"
            f" weights were non-finite before step {state.deduced}."
        )


def _moment_sentences(state: State) -> Iterator[str]:
    if state.moment:
        tensors = wording.count(state.moments, "tensor")
        yield f"The optimizer's state contains NaN or Inf in {tensors}, {state.moment}."


def _fix(state: State, good: Saved | None) -> str:
    earlier = "a checkpoint with finite weights" if _began_before(state) else wording.earlier(_harmed(state))
    if good:
        checkpoint = f"{good.path}, saved at step {good.step}"
    elif state.saved:
        checkpoint = f"{earlier}; none of those that this run saved is left"
    else:
        checkpoint = earlier
    return (
        f"{_suspects(state)} Then restore {checkpoint}, and check its weights and optimizer state with torch.isfinite"
        " before you continue."
    )


def _suspects(state: State) -> str:
    """Returns where to look first. A scaler skips steps with bad gradients; an update seldom spoils a single tensor."""
    where = _steps(state)
    if state.deduced >= 0 and state.count == 1:
        return (
            f"Find the code that writes to {state.tensor} itself in {where}, through .data or under torch.no_grad(): it"
            " is the only weight with NaN or Inf, and the scaler skips steps with such gradients. If there is none, its"
            " update overflowed, by its learning rate or an eps of zero."
        )
    written = f"Check {where}: code that writes to the weights itself, through .data or under torch.no_grad()"
    if state.deduced >= 0:
        return f"{written}, or an update that overflows, by its learning rate or an eps of zero."
    return (
        f"{written}, a gradient that no scaler checked, an eps that is zero in the state's dtype, or a learning rate"
        " that overflows."
    )


def _steps(state: State) -> str:
    """Names the steps between the last finite and the first non-finite reading of all trained weights.

    Without a finite reading they are all steps up to the latter.
    """
    if _began_before(state):
        return "what came before the first step that was watched"
    first, part, last = state.last_finite, state.last_finite_part, _harmed(state)
    if 0 <= first < last:
        return f"the applied steps from {first} to {last}"
    return f"the applied steps up to {last}" + (f", first those from {part} on" if 0 <= part < last else "")


VERDICT = Verdict(
    id="nonfinite-weights",
    severity="page",
    title="Weights are not finite",
    question="Do the weights or the optimizer's state contain NaN or Inf?",
    columns=("loss", "loss_backward", "applied", "skipped", "weights_nonfinite"),
    events=("weights.nonfinite", "moments.nonfinite", "checkpoint.saved", "origin.found"),
    needs=(Readings("weights_nonfinite", 1, within=500),),
    state=State,
    judge=judge,
    explains=(
        "nonfinite-loss",
        "nonfinite-gradient",
        "scale-collapse",
        "overflow-storm",
        "gradient-underflow",
        "scale-underflowed",
        "poisoned-buffers",
        "nonfinite-validation",
    ),
)
