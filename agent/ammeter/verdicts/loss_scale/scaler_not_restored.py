"""scaler-not-restored: the optimizer resumes from a checkpoint, but its scaler starts with default state."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.single_event import path_of, truncated
from ammeter.wire.columns import View
from ammeter.wire.frames import Event


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    data: dict[str, Any] = {}
    without: str = ""
    """The last file that was read before, with an optimizer's state and without a scaler's."""
    scaler_in: str = ""
    """The last file with a scaler's state."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("checkpoint.restored", "usage.scaler_not_restored"):
        if isinstance(part, Event) and not state.opened.active:
            state = _restored(state, part) if part.name == "checkpoint.restored" else _opened(state, part)
    return state, changed(_conclude, before, state)


def _restored(state: State, event: Event) -> State:
    contents, path = event.data.get("contents"), path_of(event.data) or "the checkpoint"
    if not isinstance(contents, dict):
        return state
    if contents.get("scaler"):
        return replace(state, scaler_in=path)
    return replace(state, without=path) if contents.get("optimizer") and contents.get("whole", True) else state


def _opened(state: State, event: Event) -> State:
    data = {name: truncated(value) for name, value in event.data.items()}
    return replace(state, opened=state.opened.at(event.step, event.step), data=data)


def _conclude(state: State) -> Finding:
    data = state.data
    caller = str(data.get("caller") or "") or None
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title="The optimizer was resumed, but its GradScaler starts anew",
        cause=_cause(state, caller),
        fix=_fix(state),
        caller=caller,
        evidence=_evidence(state),
        **lifecycle_fields(state.opened),
    )


def _cause(state: State, caller: str | None) -> str:
    data = state.data
    scale, steps = data.get("scale"), data.get("optimizer_steps")
    after = f" after {steps} steps" if isinstance(steps, int) and steps > 1 else ""
    starts = f" of {wording.scale(scale)}" if isinstance(scale, float | int) else ""
    return (
        f"{data.get('optimizer') or 'The optimizer'} was resumed{after}{f' at {caller}' if caller else ''},"
        f" but its GradScaler starts with an initial scale{starts}: {_which(state)}. {_effect(state)}"
    )


def _effect(state: State) -> str:
    """Describes the harm. It needs a scale of the interrupted run, which is not known without a scaler's state."""
    again = (
        "the scaler finds the scale of this run again, steps are skipped or small gradients become zero, and the"
        " resumed run differs from the interrupted one."
    )
    if state.scaler_in or state.data.get("loaded_by_another"):
        return f"Until {again}"
    return f"If that run had a scaler, then until {again} If it had none, as in float32, no state is missing."


def _evidence(state: State) -> dict[str, Any]:
    data = state.data
    return {
        "scale": data.get("scale"),
        "optimizer": data.get("optimizer"),
        "optimizer_steps": data.get("optimizer_steps"),
        "scaler_state_in": state.scaler_in or None,
        "no_scaler_state_in": state.without or None,
    }


def _which(state: State) -> str:
    if state.data.get("loaded_by_another"):
        return f"another GradScaler loaded the state (at {state.data['loaded_by_another']}), not the one that steps"
    if state.scaler_in:
        return f"the scaler's state in the checkpoint {state.scaler_in} was read from the file and not loaded"
    if state.without:
        return f"the checkpoint {state.without} contains the optimizer's state and no scaler's"
    return "no state was loaded into it"


def _fix(state: State) -> str:
    load = "scaler.load_state_dict(checkpoint['scaler'])"
    if state.data.get("loaded_by_another"):
        return f"Call {load} on the scaler that steps the optimizer, and create no other scaler after it."
    if state.scaler_in:
        caller = state.data.get("caller")
        return f"Call {load} next to optimizer.load_state_dict(){f' at {caller}' if caller else ''}."
    return (
        f"Save 'scaler': scaler.state_dict() in every checkpoint, and call {load} next to optimizer.load_state_dict()."
        " For a checkpoint without it, start with GradScaler(init_scale=...) at the last scale of the interrupted run,"
        " if it had one."
    )


VERDICT = Verdict(
    id="scaler-not-restored",
    severity="ticket",
    title="Scaler not restored",
    question="Was the optimizer restored from a checkpoint and its scaler not?",
    columns=(),
    events=("usage.scaler_not_restored", "checkpoint.restored"),
    state=State,
    rows=False,
    judge=judge,
    explains=("scaler-rebuilt",),
)
