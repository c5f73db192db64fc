"""masked-labels: no target of a batch is left, so that the mean of the loss is 0/0."""

from __future__ import annotations

import msgspec

from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.origins import origin_event
from ammeter.verdicts.framework.origins.origin_event import NonfiniteOrigin
from ammeter.wire.columns import View
from ammeter.wire.frames import Event

NO_TARGETS = "targets"
"""The reason in an `origin.found` event."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    origin: NonfiniteOrigin = NonfiniteOrigin()


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("origin.found"):
        if isinstance(part, Event) and not state.opened.active:
            origin = origin_event.of_event(part)
            if origin.kind == "forward" and origin.reason == NO_TARGETS:
                state = State(state.opened.at(part.step, part.step), origin)
    return state, changed(_conclude, before, state)


def _conclude(state: State) -> Finding:
    origin = state.origin
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"A loss of step {origin.step} has no targets",
        cause=_cause(origin),
        fix="Leave out a batch without targets before its forward pass, or divide the sum of the losses by at least"
        " one: F.cross_entropy(logits, targets, reduction='sum') / (targets != ignore_index).sum().clamp(min=1)."
        " Check where the targets are made: padding, truncation before the answer, or a mask that is inverted.",
        caller=origin.line or origin.caller or None,
        evidence={**origin.evidence(), "dtype": origin.dtype or None},
        **lifecycle_fields(state.opened),
    )


def _cause(origin: NonfiniteOrigin) -> str:
    op = f" ({origin.op})" if origin.op else ""
    line = f" {origin.caller} passed that loss on to {origin.call}." if origin.caller else ""
    line = f" It is computed at {origin.line}." if origin.line else line
    return (
        f"At step {origin.step} a loss{op} is a mean over no targets: each target of its batch is ignored, masked or"
        f" has a class weight of zero, or the batch is empty. The mean divides 0 by 0, which is NaN.{line}"
    )


VERDICT = Verdict(
    id="masked-labels",
    severity="ticket",
    title="A loss without targets",
    question="Is the loss a mean over no targets, because all of them are ignored or masked?",
    columns=(),
    events=("origin.found",),
    state=State,
    rows=False,
    judge=judge,
    explains=(*origin_event.CONSEQUENCES, "stagnation"),
)
