"""nonfinite-weights: the weights or the optimizer's state contain NaN or Inf."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict, module_of
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.single_event import MAX_PATH_CHARS
from ammeter.wire.columns import View, measured
from ammeter.wire.frames import Event

RECOVERED = 10
"""Finite losses of applied steps in a row that close the verdict. A reading of finite weights must be among them: a NaN
weight that is in use makes the loss NaN. The loss does not depend on moments, so a verdict about them stays open."""

CHECKPOINTS = 3
"""Maximum number of stored paths, newest last. Weights are read at intervals, so the newest checkpoint may already
contain NaN or Inf."""

MAX_NAME_CHARS = 160
"""Maximum characters of a stored name."""


class Saved(msgspec.Struct, frozen=True, array_like=True):
    path: str
    step: int


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    begun: int = -1
    """`begun`: first of the present row of non-finite losses. `harmed`: whether such a step was applied."""
    harmed: bool = False
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


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("weights.nonfinite", "moments.nonfinite", "checkpoint.saved"):
        if isinstance(part, View):
            state = _rows(state, part)
        elif isinstance(part, Event):
            state = _saved(state, part) if part.name == "checkpoint.saved" else _poisoned(state, part)
    return state, changed(_conclude, before, state)


def _rows(state: State, rows: View) -> State:
    losses = rows.loss()
    bad = measured(losses) & ~np.isfinite(losses)
    if state.begun < 0 and not state.opened.active and not bad.any():
        return state
    records = rows.records("loss", "applied", "skipped", "weights_nonfinite")
    for at, (step, (loss, applied, skipped, nonfinite)) in enumerate(records):
        if bad[at]:
            harmed = state.harmed or not (skipped > 0 and applied == 0)
            state = replace(state, begun=state.begun if state.begun >= 0 else step, harmed=harmed, finite=0)
        elif math.isfinite(loss):
            state = _finite(state, nonfinite, applied > 0)
    return state


def _finite(state: State, nonfinite: float, applied: bool) -> State:
    if not state.opened.active:
        return replace(state, begun=-1, harmed=False)
    if nonfinite > 0:
        return replace(state, begun=-1, harmed=False, finite=0, clean=False)
    finite, clean = state.finite + applied, state.clean or nonfinite == 0
    state = replace(state, begun=-1, harmed=False, finite=finite, clean=clean)
    over = finite >= RECOVERED and clean and not state.moment
    return replace(state, opened=state.opened.over()) if over else state


def _poisoned(state: State, event: Event) -> State:
    """Opens or extends the finding.

    Losses whose steps the scaler skipped did not change the weights, so the weights were bad before the first of them.
    """
    before = state.begun >= 0 and not state.harmed
    first = max(0, state.begun - 1) if before else event.step
    if not state.opened.active:
        state = replace(state, tensor="", count=0, last_finite=-1, moment="", moments=0)
        state = replace(state, deduced=state.begun if before and state.begun > 0 else -1)
    state = replace(state, opened=state.opened.at(min(first, event.step), event.step), finite=0, clean=False)
    data = event.data
    name, count = str((data.get("tensors") or ["one"])[0])[:MAX_NAME_CHARS], data.get("count", 1)
    if event.name == "moments.nonfinite":
        return state if state.moment else replace(state, moment=name, moments=count)
    last = data.get("last_finite")
    last = last if isinstance(last, int) else -1
    return state if state.tensor else replace(state, tensor=name, count=count, last_finite=last)


def _saved(state: State, event: Event) -> State:
    """Updates the list of checkpoints.

    Overwritten checkpoints are removed. Those written after the first bad step are bad and are not stored.
    """
    path, contents = event.data.get("path"), event.data.get("contents") or {}
    if not path or not contents.get("weights") or len(path) > MAX_PATH_CHARS:
        return state
    kept = tuple(each for each in state.saved if each.path != path)
    if state.opened.active:
        return state if len(kept) == len(state.saved) else replace(state, saved=kept)
    return replace(state, saved=(*kept, Saved(path, event.step))[-CHECKPOINTS:])


def _conclude(state: State) -> Finding:
    opened = state.opened
    good = next((each for each in reversed(state.saved) if each.step < opened.first), None)
    held = state.tensor or state.moment
    subject = "Weights hold" if state.tensor else "The optimizer's state holds"
    return Finding(
        verdict=VERDICT.id,
        severity="page",
        title=f"{subject} NaN or Inf, read at step {opened.step}",
        cause=_cause(state),
        fix=_fix(state, good),
        tensor=held,
        module=module_of(held if state.tensor else module_of(held)),
        evidence={
            "nonfinite_weight": state.tensor or None,
            "nonfinite_moment": state.moment or None,
            "read_at_step": opened.step,
            "skipped_losses_from": state.deduced if state.deduced >= 0 else None,
            "weights": state.count,
            "moments": state.moments,
            "last_finite_step": state.last_finite if state.last_finite >= 0 else None,
            "checkpoint": good.path if good else None,
            "checkpoint_step": good.step if good else None,
        },
        **lifecycle_fields(opened),
    )


def _cause(state: State) -> str:
    said = []
    if state.tensor:
        since = (
            f" At step {state.last_finite} the weights that were read were finite." if state.last_finite >= 0 else ""
        )
        hold = "holds" if state.count == 1 else "hold"
        named = state.tensor if state.count == 1 else f"{state.tensor} among them"
        said.append(f"{wording.count(state.count, 'tensor')} of weights {hold} NaN or Inf, {named}.{since}")
        if state.deduced >= 0:
            said.append(
                f"Losses are not finite from step {state.deduced} on and the scaler skipped each of them, so the"
                f" weights were so after step {state.opened.first} at the latest."
            )
    if state.moment:
        said.append(
            f"The optimizer's state holds NaN or Inf in {wording.count(state.moments, 'tensor')}, {state.moment}."
        )
    after = (
        "what meets a NaN becomes NaN, and so does the loss where the weight takes part"
        if state.tensor
        else "an update made of it is NaN, too, or zero"
    )
    return " ".join(said) + f" Training on does not mend that: {after}."


def _fix(state: State, good: Saved | None) -> str:
    first = state.opened.first
    back = (
        f"go back to {good.path}, saved at step {good.step}"
        if good
        else f"go back to {wording.earlier(first)}; none of those that were saved in this run is left"
        if state.saved
        else f"go back to {wording.earlier(first)}"
    )
    return (
        f"Stop the run and {back}. Check its weights and optimizer state with torch.isfinite before you go on. Then"
        f" look at what {_steps(state)} applied: a gradient that no scaler checked, an eps that is zero in the state's"
        " dtype, a learning rate that overflows."
    )


def _steps(state: State) -> str:
    """Names the steps between the last finite and the first non-finite reading.

    Without a finite reading they are all steps up to the latter.
    """
    first, last = state.last_finite, state.opened.first
    return f"the steps from {first} to {last}" if 0 <= first < last else f"the steps up to {last}"


VERDICT = Verdict(
    id="nonfinite-weights",
    severity="page",
    title="Weights are not finite",
    question="Do the weights or the optimizer's state hold NaN or Inf?",
    columns=("loss", "loss_backward", "applied", "skipped", "weights_nonfinite"),
    events=("weights.nonfinite", "moments.nonfinite", "checkpoint.saved"),
    state=State,
    judge=judge,
    explains=(
        "nonfinite-loss",
        "nonfinite-gradient",
        "scale-collapse",
        "overflow-storm",
        "gradient-underflow",
        "scale-underflowed",
    ),
)
