"""scheduler-ahead: the learning rate schedule advances on skipped steps often enough to matter."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.single_event import truncated
from ammeter.wire.columns import View
from ammeter.wire.frames import Event

MIN_MOVES = 16
"""Number of moves for skipped steps below which the effect is negligible: a newly set scale falls from 2^24 to 2^8 in
so many."""

MIN_SKIPPED_SHARE = 0.05
"""Share of all moves. A cosine schedule that is this far ahead has a learning rate that is off by 8 % of its peak where
it is steepest (pi/2 times the share), about the precision with which people choose it. torch's defaults spend one move
in 2000."""

RECOVERED_SHARE = MIN_SKIPPED_SHARE / 2
"""Share below which the verdict closes, because later moves have diluted the skips. It is far enough from
MIN_SKIPPED_SHARE to avoid flapping."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    data: dict[str, Any] = {}
    ahead_from: int = -1
    """Step at which the schedule began to run ahead: the first event, or the last one while the share was low."""
    applied: int = 0
    """Steps applied since the event in data, while the verdict holds."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("usage.scheduler_ahead"):
        if isinstance(part, View):
            state = _rows(state, part) if state.opened.active else state
        elif isinstance(part, Event):
            state = _event(state, part)
    return state, changed(_conclude, before, state)


def _event(state: State, event: Event) -> State:
    skipped, scheduled = _counts(event.data)
    ahead_from = event.step if state.ahead_from < 0 or skipped < RECOVERED_SHARE * scheduled else state.ahead_from
    state = replace(state, ahead_from=ahead_from)
    if skipped < MIN_MOVES or skipped < MIN_SKIPPED_SHARE * scheduled:
        return state
    data = {name: truncated(value) for name, value in event.data.items()}
    return replace(state, opened=state.opened.at(ahead_from, event.step), data=data, applied=0)


def _rows(state: State, rows: View) -> State:
    applied = state.applied + int(np.count_nonzero(rows.scalar("applied") > 0))
    skipped, scheduled = _counts(state.data)
    moves = scheduled + applied * (scheduled - skipped) / max(1, int(state.data.get("applied") or 1))
    if skipped < RECOVERED_SHARE * moves:
        return replace(state, opened=state.opened.over(), applied=0)
    return replace(state, applied=applied)


def _counts(data: dict[str, Any]) -> tuple[int, int]:
    skipped, scheduled = int(data.get("skipped") or 0), int(data.get("scheduled") or 0)
    return skipped, max(skipped, scheduled)


def _conclude(state: State) -> Finding:
    data = state.data
    caller = str(data.get("caller") or "") or None
    skipped, scheduled = _counts(data)
    at = f" at {caller}" if caller else ""
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"The learning rate schedule moves on skipped steps: {skipped} too many by step {state.opened.last}",
        cause=_cause(state, skipped, scheduled, at),
        fix=f"Call {_call(caller)} only after an applied step: before = scaler.get_scale(); scaler.step(optimizer);"
        " scaler.update(); if scaler.get_scale() >= before: scheduler.step().",
        caller=caller,
        evidence={
            "moves_for_skipped_steps": skipped,
            "moves": scheduled,
            "share": round(skipped / max(1, scheduled), 4),
            "last_skipped_step": data.get("last"),
        },
        **lifecycle_fields(state.opened),
    )


def _cause(state: State, skipped: int, scheduled: int, at: str) -> str:
    scheduler, optimizer = (str(state.data.get(name) or "") for name in ("scheduler", "optimizer"))
    optimizer = optimizer.partition(" of ")[0] or "the optimizer"  # without a tensor of it
    return (
        f"{scheduler or 'The schedule'} advances{at} also after steps of {optimizer} that were skipped, so warm-up and"
        f" decay of the learning rate run ahead of the training: up to step {state.opened.last}, {skipped} of"
        f" its {scheduled} moves ({wording.percent(skipped / max(1, scheduled))}) belong to skipped steps."
    )


def _call(caller: str | None) -> str:
    return f"the scheduler.step() at {caller}" if caller else "scheduler.step()"


VERDICT = Verdict(
    id="scheduler-ahead",
    severity="ticket",
    title="Learning rate schedule ahead of the steps",
    question="Does the learning rate schedule advance on many skipped steps?",
    columns=("applied",),
    events=("usage.scheduler_ahead",),
    state=State,
    judge=judge,
)
