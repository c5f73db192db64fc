"""resume-mismatch: a resumed run lacks its optimizer's state, or has it in a narrower dtype.

Loading weights alone is no fault by itself, because every fine-tuning begins so. It is a fault if the same run
continues. The signs of that are in SIGNS; others are an optimizer that loaded the state and does not step, a file that
fits the run to the last setting, and a checkpoint that is saved to the folder of the one that was read.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.single_event import MAX_TEXT_CHARS, path_of
from ammeter.wire.columns import View
from ammeter.wire.frames import Event

MAX_RESUME_STEP = 10
"""Maximum step at which a resumed run loads its checkpoint."""

NARROW_DTYPES = ("float16", "bfloat16")
"""Dtypes with 8 or 11 significant bits. Moments that a run kept in float32 lose information in them."""

MIN_NARROWED_SHARE = 0.05
"""Share of the state's elements that were wide when saved and are narrow now. A few half-precision vectors may be
intended."""


SIGNS = {
    "scaler.restored": "its scaler was restored",
    "scheduler.restored": "its learning rate schedule was restored",
    "run.continued": "an earlier process has trained in this run",
}
"""Events that show that the same run continues, with the reason in words."""


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
    continues: str = ""
    """The sign that the same run continues."""
    seen: bool = False
    known: int = -1
    """`known`: step of the last relevant event. `step`: the last step, until the decision."""
    step: int = -1
    decided: bool = False
    narrowed: tuple[str, str] = ("", "")
    """The dtype of most of the saved state, and the narrower restored dtype."""
    restored_at: int = -1
    """Step of the narrowed restore."""
    own: str = ""
    """The file that this run saved last. Reading it back is a check of the file, not a resume."""
    fits: bool = False
    """Whether the file has the weights and settings of this run."""
    weights: bool = False
    """Whether the model loaded a state."""
    loaded: dict[str, int] = {}
    """Elements by dtype of the state that an optimizer loaded."""
    is_cast_later: bool = False
    """Whether the state was narrowed after it was loaded."""
    caller: str = ""
    """The line that loaded the weights."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts(*VERDICT.events):
        if state.decided:
            break
        if isinstance(part, View):
            state = _decided(replace(state, step=int(part.steps[-1])))
        elif isinstance(part, Event):
            updated = _updated(state, part)
            state = _decided(updated if updated is state else replace(updated, known=part.step))
    return state, changed(_conclude, before, state)


def _updated(state: State, event: Event) -> State:
    if event.name == "optimizer.restored":
        return _restored(state, event)
    if event.name == "weights.census":
        return _counted(state, event)
    if event.name in SIGNS:
        return replace(state, continues=state.continues or SIGNS[event.name])
    if event.name == "model.restored":
        return _with_fit(replace(state, weights=True, caller=str(event.data.get("caller") or "")[:MAX_TEXT_CHARS]))
    if event.name in ("optimizer.discarded", "optimizer.joined"):
        return _replaced(state, event)
    path = path_of(event.data)
    if event.name == "checkpoint.saved":
        state = replace(state, own=path)
        same_folder = state.read >= 0 and _folder(path) == _folder(state.path) != ""
        return replace(state, continues="it saves to the same folder") if same_folder and not state.continues else state
    if path and path == state.own:
        return state
    contents = event.data.get("contents")
    both = isinstance(contents, dict) and contents.get("weights") and contents.get("optimizer") is True
    fits = event.data.get("fits") is True
    at_start = (state.read < 0 or (fits and not state.fits)) and event.step <= MAX_RESUME_STEP
    return _with_fit(replace(state, path=path, read=event.step, fits=fits)) if both and at_start else state


def _with_fit(state: State) -> State:
    """Adds the sign of a file that has the weights, which the model loaded, and all settings of this run."""
    if state.continues or not (state.fits and state.weights):
        return state
    return replace(state, continues="its optimizer has the parameters and settings of the saved one")


def _replaced(state: State, event: Event) -> State:
    """Processes an optimizer that loaded the state and does not step, because another one was built after it."""
    caller = str(event.data.get("caller") or "")
    if event.name == "optimizer.discarded":
        place = f" at {caller}" if caller else ""
        return replace(state, continues=f"its state was loaded{place} into an optimizer that does not step")
    if not (state.restored and state.restored_at == event.step and event.data.get("replaces") and caller):
        return state
    sign = f"the optimizer that loaded the state was replaced by the one of {caller}"
    return replace(state, restored=False, continues=sign)


def _restored(state: State, event: Event) -> State:
    saved, restored = (_counts(event.data.get(name)) for name in ("saved", "state"))
    lost = sum(restored.get(dtype, 0) - saved.get(dtype, 0) for dtype in NARROW_DTYPES)
    if lost < MIN_NARROWED_SHARE * sum(restored.values()) or not lost or sum(saved.values()) < sum(restored.values()):
        return replace(state, restored=True, restored_at=event.step, narrowed=("", ""), loaded=restored)
    kinds = max(saved, key=lambda dtype: saved[dtype]), max(NARROW_DTYPES, key=lambda dtype: restored.get(dtype, 0))
    return replace(
        state, restored=True, narrowed=kinds, restored_at=event.step, elements=lost, loaded={}, is_cast_later=False
    )


def _counts(census: Any) -> dict[str, int]:
    if not isinstance(census, dict):
        return {}
    return {str(dtype): count for dtype, count in census.items() if isinstance(count, int)}


def _counted(state: State, event: Event) -> State:
    """Processes a census.

    The first census shows the optimizer before its first step; a state in it was loaded before.
    """
    counts = _counts(event.data.get("state"))
    elements = sum(counts.values())
    state = _with_later_cast(state, counts)
    if not state.seen:
        restored_at = event.step if elements and not state.restored else state.restored_at
        return replace(state, seen=True, restored=state.restored or elements > 0, restored_at=restored_at)
    if state.narrowed[0]:
        return state if any(counts.get(dtype) for dtype in NARROW_DTYPES) else replace(state, narrowed=("", ""))
    return state if elements == state.elements else replace(state, elements=elements)


def _with_later_cast(state: State, counts: dict[str, int]) -> State:
    """Finds a state that was loaded in a wide dtype and is in a narrow one at the next census."""
    lost = sum(counts.get(dtype, 0) - state.loaded.get(dtype, 0) for dtype in NARROW_DTYPES)
    if not state.loaded or lost <= 0 or lost < MIN_NARROWED_SHARE * sum(state.loaded.values()):
        return state
    was = max(state.loaded, key=lambda dtype: state.loaded[dtype])
    now = max(NARROW_DTYPES, key=lambda dtype: counts.get(dtype, 0))
    return replace(state, narrowed=(was, now), elements=lost, loaded={}, is_cast_later=True)


def _decided(state: State) -> State:
    """Decides once a later step than that of the read has a row.

    Events of further loads precede that row.
    """
    if state.narrowed[0]:
        if state.step <= state.restored_at:
            return state
        return replace(state, decided=True, step=-1, opened=state.opened.at(state.restored_at, state.restored_at + 1))
    if state.restored:
        return state if state.step <= state.restored_at else replace(state, decided=True, step=-1)
    if not 0 <= state.read < state.step or not state.continues or not state.elements:
        return state
    return replace(state, decided=True, step=-1, opened=state.opened.at(state.read, max(state.read + 1, state.known)))


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _conclude(state: State) -> Finding:
    return _narrowed(state) if state.narrowed[0] else _not_loaded(state)


def _narrowed(state: State) -> Finding:
    was, now = state.narrowed
    if state.is_cast_later:
        title = f"The optimizer state was restored in {was} and then cast to {now}"
        cause = f"At step {state.restored_at}, the optimizer state was loaded in {was} and then cast to {now}."
    else:
        title = f"The optimizer state was saved in {was} and restored in {now}"
        cause = (
            f"At step {state.restored_at}, optimizer.load_state_dict cast the optimizer state from {was} to {now},"
            " because it uses the dtype of the weights."
        )
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=title,
        cause=f"{cause} {wording.count(state.elements, 'element')} changed dtype. Small"
        " second moments become zero or stop changing, so steps have another size than before the resume.",
        fix="Load the optimizer while the weights are in float32: build the model, load its weights and the optimizer"
        f" state, and use torch.autocast(device, dtype=torch.{now}) for the forward pass instead of model.half() or"
        " model.bfloat16(). Then resume from the same checkpoint again: a cast back does not restore the values.",
        evidence={"saved_dtype": was, "restored_dtype": now, "state_elements": state.elements},
        **lifecycle_fields(state.opened),
    )


def _not_loaded(state: State) -> Finding:
    beside = f" beside model.load_state_dict() at {state.caller}," if state.caller else ""
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title="The run resumed without the optimizer state of its checkpoint",
        cause=f"The checkpoint {state.path or 'in memory'}, read at step {state.opened.first}, has optimizer state, but"
        f" the optimizer that steps did not load it. Its {wording.count(state.elements, 'element')} started from zero,"
        " so the first steps have the wrong size and direction. The run continues the saved one, to judge by this:"
        f" {state.continues}.",
        fix=f'Call optimizer.load_state_dict(checkpoint["optimizer"]){beside} on the optimizer that steps, once the'
        " model is on its device and in its dtype. Then resume from that checkpoint again.",
        caller=state.caller or None,
        evidence={"path": state.path, "state_elements": state.elements, "same_run_because": state.continues},
        **lifecycle_fields(state.opened),
    )


VERDICT = Verdict(
    id="resume-mismatch",
    severity="ticket",
    title="Optimizer state not restored",
    question="Does a resumed run continue without the optimizer state of its checkpoint, or with it in half precision?",
    columns=(),
    events=(
        *("checkpoint.restored", "optimizer.restored", "weights.census", "checkpoint.saved", *SIGNS),
        *("model.restored", "optimizer.discarded", "optimizer.joined"),
    ),
    state=State,
    judge=judge,
    explains=("diverged", "gradient-spike", "overflow-storm", "half-optimizer-state", "half-master-weights"),
)
