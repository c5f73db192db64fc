"""resume-mismatch: a resumed run lacks its optimizer's state, or has it in a narrower dtype.

Loading weights alone is no fault by itself, because every fine-tuning begins so. It is a fault if the same run
continues. There are two signs of that: its scaler was restored, or it saves to the folder that it loaded from.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.single_event import path_in
from ammeter.wire.columns import View
from ammeter.wire.frames import Event

BEGINNING = 10
"""Maximum step at which a resumed run loads its checkpoint."""


NARROW = ("float16", "bfloat16")
"""Dtypes with 8 or 11 significant bits. Moments that a run kept in float32 lose information in them."""

SHARE = 0.05
"""Share of the state's elements that were wide when saved and are narrow now. A few half-precision vectors may be
intended."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    path: str = ""
    """`path`: checkpoint with weights and an optimizer's state. `read`: step at which it was read."""
    read: int = -1
    restored: bool = False
    """Whether an optimizer loaded a state, or had one at its first census."""
    elements: int = 0
    """Elements of the state that the optimizer built itself, 0 if it keeps none. After a narrowed restore it is the
    number of narrowed elements."""
    goes_on: str = ""
    """The sign that the same run continues."""
    seen: bool = False
    known: int = -1
    """`known`: step of the last relevant event. `step`: the last step, until the decision."""
    step: int = -1
    decided: bool = False
    narrowed: tuple[str, str] = ("", "")
    """The dtype of most of the saved state, and the narrower restored dtype."""
    given: int = -1
    """Step of the narrowed restore."""
    own: str = ""
    """The file that this run saved last. Reading it back is a check of the file, not a resume."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts(*VERDICT.events):
        if state.decided:
            break
        if isinstance(part, View):
            state = _decided(replace(state, step=int(part.steps[-1])))
        elif isinstance(part, Event):
            heard = _heard(state, part)
            state = _decided(heard if heard is state else replace(heard, known=part.step))
    return state, changed(_conclude, before, state)


def _heard(state: State, event: Event) -> State:
    if event.name == "optimizer.restored":
        return _restored(state, event)
    if event.name == "weights.census":
        return _counted(state, event)
    if event.name == "scaler.restored":
        return replace(state, goes_on="its scaler was restored")
    path = path_in(event.data)
    if event.name == "checkpoint.saved":
        state = replace(state, own=path)
        here = state.read >= 0 and _folder(path) == _folder(state.path) != ""
        return replace(state, goes_on="it saves to the same folder") if here and not state.goes_on else state
    if path and path == state.own:
        return state
    contents = event.data.get("contents")
    whole = isinstance(contents, dict) and contents.get("weights") and contents.get("optimizer") is True
    return replace(state, path=path, read=event.step) if whole and state.read < 0 and event.step <= BEGINNING else state


def _restored(state: State, event: Event) -> State:
    saved, given = (_counts(event.data.get(name)) for name in ("saved", "state"))
    lost = sum(given.get(dtype, 0) - saved.get(dtype, 0) for dtype in NARROW)
    if lost < SHARE * sum(given.values()) or not lost or sum(saved.values()) < sum(given.values()):
        return replace(state, restored=True, narrowed=("", ""))
    kinds = max(saved, key=lambda dtype: saved[dtype]), max(NARROW, key=lambda dtype: given.get(dtype, 0))
    return replace(state, restored=True, narrowed=kinds, given=event.step, elements=lost)


def _counts(told: Any) -> dict[str, int]:
    return (
        {str(dtype): count for dtype, count in told.items() if isinstance(count, int)} if isinstance(told, dict) else {}
    )


def _counted(state: State, event: Event) -> State:
    """Processes a census.

    The first census shows the optimizer before its first step; a state in it was loaded before.
    """
    counts = _counts(event.data.get("state"))
    elements = sum(counts.values())
    if not state.seen:
        return replace(state, seen=True, restored=state.restored or elements > 0)
    if state.narrowed[0]:
        return state if any(counts.get(dtype) for dtype in NARROW) else replace(state, narrowed=("", ""))
    return state if elements == state.elements else replace(state, elements=elements)


def _decided(state: State) -> State:
    """Decides once a later step than that of the read has a row.

    Events of further loads precede that row.
    """
    if state.narrowed[0]:
        if state.step <= state.given:
            return state
        return replace(state, decided=True, step=-1, opened=state.opened.at(state.given, state.given + 1))
    if state.restored:
        return replace(state, decided=True, step=-1)
    if not 0 <= state.read < state.step or not state.goes_on or not state.elements:
        return state
    return replace(state, decided=True, step=-1, opened=state.opened.at(state.read, max(state.read + 1, state.known)))


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _conclude(state: State) -> Finding:
    return _narrowed(state) if state.narrowed[0] else _forgotten(state)


def _narrowed(state: State) -> Finding:
    was, now = state.narrowed
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"The optimizer's state was saved in {was} and restored in {now}",
        cause=f"At step {state.given} an optimizer was given a state of {was} and keeps"
        f" {wording.count(state.elements, 'number')} of it in {now}: load_state_dict casts a state to the dtype of the"
        " weights, without a word. Small second moments become zero or stand still from then on, and steps have another"
        " size than before.",
        fix="Load the optimizer while the weights are in float32: build the model, load its weights and the optimizer's"
        f" state, and let torch.autocast(device, dtype=torch.{now}) do the forward pass, without model.half() or"
        " model.bfloat16(). Begin again from the checkpoint: what was cast away does not come back.",
        evidence={"saved_dtype": was, "restored_dtype": now, "state_elements": state.elements},
        **lifecycle_fields(state.opened),
    )


def _forgotten(state: State) -> Finding:
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title="The run goes on without its optimizer's state",
        cause=f"The checkpoint {state.path or 'in memory'}, read at step {state.opened.first}, holds an optimizer's"
        f" state, but no optimizer was given it, although the same run goes on from there ({state.goes_on}). The"
        f" {wording.count(state.elements, 'number')} of its state began from nothing, so the first steps have the wrong"
        " size and direction, which can undo what was learnt.",
        fix='Call optimizer.load_state_dict(checkpoint["optimizer"]) before the first step, after the model was moved'
        " to its device and dtype, on the optimizer that steps: one that is built anew later has lost it again.",
        evidence={"path": state.path, "state_elements": state.elements, "same_run_because": state.goes_on},
        **lifecycle_fields(state.opened),
    )


VERDICT = Verdict(
    id="resume-mismatch",
    severity="ticket",
    title="A resumed run lost its optimizer's state",
    question="Does a run go on without the optimizer's state that its checkpoint holds, or with it in half precision?",
    columns=(),
    events=("checkpoint.restored", "optimizer.restored", "scaler.restored", "weights.census", "checkpoint.saved"),
    state=State,
    judge=judge,
    explains=("gradient-spike", "overflow-storm", "half-optimizer-state", "half-master-weights"),
)
