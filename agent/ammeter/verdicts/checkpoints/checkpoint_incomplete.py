"""checkpoint-incomplete: no checkpoint of the run contains everything that a resume needs.

All files saved between two steps count as one checkpoint. An export of the weights is no fault: after one complete
checkpoint in the run, incomplete ones are not reported.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.single_event import path_of, truncated
from ammeter.wire.columns import View
from ammeter.wire.frames import Event

MIN_CHECKPOINTS = 3
"""Checkpoints without an optimizer, each followed by more training, that open the verdict. One or two may be exports
before the first checkpoint. With an export every hundredth and a checkpoint every thousandth step, the verdict closes
at the first checkpoint."""

EFFECTS = {
    "float32 weights": "weights in half precision only, which discards the low-order bits of the trained values",
    "optimizer": "no optimizer state, so a resumed run starts with moments of zero and wrong step sizes",
    "scaler": "no GradScaler state, so a resumed run skips steps until its loss scale has settled again",
}
"""Effect of a missing part on a resumed run, by its name in the event."""

ADD = {
    "float32 weights": '"model": model.state_dict(), saved before any .half(),',
    "optimizer": '"optimizer": optimizer.state_dict(),',
    "scaler": '"scaler": scaler.state_dict(),',
}


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    complete: bool = False
    """Whether a complete checkpoint was seen."""
    saved: int = -1
    """Step of the unfinished checkpoint: more of its files may follow."""
    missing: tuple[str, ...] = ()
    """Parts that none of its files contains so far."""
    path: str = ""
    first: int = -1
    checkpoints: int = 0
    """`checkpoints`: finished incomplete checkpoints, each followed by training. `first`: step of the first one."""
    lacks: tuple[str, ...] = ()
    half: str = ""
    """`lacks`: missing parts of the last incomplete checkpoint. `half`: dtype of its weights."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("checkpoint.saved"):
        if state.complete:
            break
        if isinstance(part, View):
            state = _trained(state, int(part.steps[-1]))
        elif isinstance(part, Event):
            state = _saved(state, part)
    return state, changed(_conclude, before, state)


def _trained(state: State, step: int) -> State:
    """Closes the current checkpoint once training has continued, because no more files follow."""
    if step <= state.saved or state.saved < 0:
        return state
    saved, state = state.saved, replace(state, saved=-1)
    lacks = tuple(name for name in EFFECTS if name in state.missing)
    if not lacks or "weights" in state.missing:  # a part: another rank or library saves the weights
        return state
    state = replace(
        state, checkpoints=state.checkpoints + 1, first=saved if state.first < 0 else state.first, lacks=lacks
    )
    if state.opened.active or "optimizer" not in lacks or state.checkpoints >= MIN_CHECKPOINTS:
        return replace(state, opened=state.opened.at(state.first, saved))
    return state


def _saved(state: State, event: Event) -> State:
    state = _trained(state, event.step)
    contents, missing = event.data.get("contents"), event.data.get("missing")
    if not isinstance(contents, dict) or not isinstance(missing, list):
        return state
    known = contents.get("whole") is not False
    absent = tuple(name for name in ("weights", *EFFECTS) if name in missing and known)
    if state.saved == event.step:
        absent = tuple(name for name in absent if name in state.missing)
    if not absent and known:
        return replace(state, complete=True, missing=(), opened=state.opened.over())
    weights = contents.get("weights")
    half = ", ".join(map(str, weights)) if isinstance(weights, dict) and weights else state.half
    return replace(state, saved=event.step, missing=absent, path=path_of(event.data), half=truncated(half))


def _conclude(state: State) -> Finding:
    path = f"{_saved_as(state.path)}, " if state.path else ""
    effects = "; ".join(EFFECTS[name] for name in state.lacks)
    lack = "lacks" if state.checkpoints == 1 else "lack"
    parts = " ".join(ADD[name] for name in state.lacks)
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"The checkpoints lack {wording.listed(state.lacks)}",
        cause=f"No complete checkpoint of this run was seen: {wording.count(state.checkpoints, 'checkpoint')} since"
        f" step {state.opened.first} {lack} a part that a resume needs. The last one, {path}has {effects}.",
        fix=f"Add to the saved dictionary: {parts} and load all parts before the first step of a resumed run."
        " If these files are exports, save a complete checkpoint in addition.",
        evidence=_evidence(state),
        **lifecycle_fields(state.opened),
    )


def _saved_as(path: str) -> str:
    """Returns the path, or the folder of a file with a temporary name, which is renamed after it was written."""
    folder, _, name = path.rpartition("/")
    is_temporary = re.fullmatch(r"\..+\.[\w-]{6,12}", name) is not None
    return f"in {folder}" if is_temporary and folder else path


def _evidence(state: State) -> dict[str, Any]:
    return {
        "path": state.path,
        "missing": list(state.lacks),
        "checkpoints": state.checkpoints,
        "weights": state.half,
        "last_saved_step": state.opened.last,
    }


VERDICT = Verdict(
    id="checkpoint-incomplete",
    severity="ticket",
    title="Incomplete checkpoints",
    question="Do all checkpoints lack a part that a resumed run needs?",
    columns=(),
    events=("checkpoint.saved",),
    state=State,
    judge=judge,
)
