"""masked-labels: no target of a batch is left, so that its mean loss is 0/0, or a share of all batches is lost."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.origins import origin_event
from ammeter.verdicts.framework.origins.origin_event import NonfiniteOrigin
from ammeter.wire.columns import View
from ammeter.wire.frames import Event

NO_TARGETS = "targets"
"""The reason in an `origin.found` event."""

MIN_SHARE = 0.01
"""Share of the micro-batches without targets from which they are a fault of the data, not single odd samples."""

MIN_MICRO_BATCHES = 4
"""Micro-batches without targets from which their share is judged: at the limit, 4 of 400."""

MAX_LINE_CHARS = 120
"""Maximum characters of a line in the state."""


class Share(msgspec.Struct, frozen=True, array_like=True):
    """How many micro-batches have no target, of those that were examined.

    Attributes:
        first, last: the steps of the first of them, and of the last count.
        caller: the line of backward() or scale() for the first of them.
        is_nan: whether its loss was NaN or Inf, not zero.
        given_up, searched: forward passes that the program gave up before backward(), and those of them whose loss was
            searched; `count` were found. 0 if `count` are losses that it called backward() on.
    """

    count: int = 0
    of: int = 0
    first: int = -1
    last: int = -1
    caller: str = ""
    is_nan: bool = False
    given_up: int = 0
    searched: int = 0

    @property
    def share(self) -> float:
        if not self.given_up:
            return self.count / self.of if self.of else 0.0
        return self.given_up / max(self.of, 1) * self.count / max(self.searched, 1)


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    origin: NonfiniteOrigin = NonfiniteOrigin()
    missing: Share = Share()


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts(*VERDICT.events):
        if isinstance(part, Event) and part.name == "origin.found" and state.origin.step < 0:
            origin = origin_event.of_event(part)
            if origin.kind == "forward" and origin.reason == NO_TARGETS:
                state = replace(state, opened=state.opened.at(part.step, part.step), origin=origin)
        elif isinstance(part, Event) and part.name == "targets.missing":
            state = _counted(state, part)
    return state, changed(_conclude, before, state)


def _counted(state: State, event: Event) -> State:
    """Opens the verdict by the share. A loss that was NaN keeps it open."""
    missing = _share_of(event)
    opened = state.opened
    if missing.count >= MIN_MICRO_BATCHES and missing.share >= MIN_SHARE:
        opened = opened.at(missing.first, event.step)
    elif state.origin.step < 0:
        opened = opened.over()
    return replace(state, opened=opened, missing=missing)


def _share_of(event: Event) -> Share:
    data = event.data
    return Share(
        count=int(data["count"]),
        of=int(data["of"]),
        first=int(data["first_step"]),
        last=event.step,
        caller=str(data.get("caller") or "")[:MAX_LINE_CHARS],
        is_nan=bool(data.get("nan")),
        given_up=int(data.get("given_up", 0)),
        searched=int(data.get("searched", 0)),
    )


def _conclude(state: State) -> Finding:
    is_nan = state.origin.step >= 0
    title = _title_of_nan(state) if is_nan else _title(state.missing)
    line = state.origin.line or state.origin.caller if is_nan else state.missing.caller
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=title,
        cause=_cause_of_nan(state) if is_nan else _cause_of_share(state.missing),
        fix=_fix_of_nan(state.missing)
        if is_nan
        else _FIX_SHARE
        if not state.missing.given_up
        else _FIX_SHARE.partition(" Then ")[0],
        caller=line or None,
        evidence=_evidence(state),
        **lifecycle_fields(state.opened),
    )


MANY = 0.05
"""Share of the micro-batches without targets from which the data are at fault, not single batches."""

_GUARD = (
    "divide the sum of the losses by at least one: F.cross_entropy(logits, targets, reduction='sum') /"
    " (targets != ignore_index).sum().clamp(min=1)."
)


def _fix_of_nan(missing: Share) -> str:
    made = "check where the targets are made: a mask that is inverted, truncation before the answer, or padding"
    if missing.count >= MIN_MICRO_BATCHES and missing.share >= MANY:
        first = f" Print (targets != ignore_index).sum() for the batch of step {missing.first}."
        return f"{wording.sentence(made)}.{first} Against single batches of the kind, {_GUARD}"
    return f"Leave out a batch without targets before its forward pass, or {_GUARD} Then {made}."


_FIX_SHARE = (
    "Check where the targets are made: truncation before the answer (raise max_length, or cut the prompt), a chat"
    " template whose answer is not found, or a mask that is inverted. Then leave out a batch without targets before its"
    " forward pass."
)


def _title_of_nan(state: State) -> str:
    missing = state.missing
    if missing.count >= MIN_MICRO_BATCHES and missing.share >= MIN_SHARE and not missing.given_up:
        steps = missing.last - missing.first + 1
        return f"{missing.count} micro-batches in the {steps} steps from step {missing.first} on have no targets"
    return f"A loss of step {state.origin.step} has no targets"


def _title(missing: Share) -> str:
    if missing.given_up:
        return "Forward passes are given up because their loss has no targets"
    return f"{wording.percent(missing.share)} of the micro-batches have no targets"


def _evidence(state: State) -> dict[str, Any]:
    missing = state.missing
    of_nan = {**state.origin.evidence(), "dtype": state.origin.dtype or None} if state.origin.step >= 0 else {}
    counts = {"without_targets": missing.count, "examined": missing.of} if missing.count else {}
    given_up = {"given_up": missing.given_up, "searched": missing.searched} if missing.given_up else {}
    return of_nan | counts | given_up


def _cause_of_nan(state: State) -> str:
    origin, missing = state.origin, state.missing
    line = f" {origin.caller} passed that loss on to {origin.call}." if origin.caller else ""
    line = f" It is computed at {origin.line}." if origin.line else line
    share = f" {_counts(missing)}" if missing.count > 1 else ""
    return (
        f"At step {origin.step} the loss{f' ({origin.operator})' if origin.op else ''} is a mean over no targets: each"
        " target of the batch is ignored, masked or has a class weight of zero, or the batch is empty. The mean divides"
        f" 0 by 0, which is NaN.{share}{line}"
    )


def _cause_of_share(missing: Share) -> str:
    seen = "NaN or Inf" if missing.is_nan else "0, without a gradient"
    return (
        f"{_counts(missing)} Each target of such a micro-batch is ignored, masked or has a class weight of zero, or it"
        f" is empty. At step {missing.first}, the loss of one was {seen}."
    )


def _counts(missing: Share) -> str:
    if missing.given_up:
        return (
            f"Up to step {missing.last}, {missing.given_up} of {missing.of} forward passes that were observed"
            f" ({wording.percent(missing.given_up / max(missing.of, 1))}) were followed by another one without"
            f" backward(). Of {missing.searched} of them the loss was searched, and in"
            f" {missing.count} it had no target."
        )
    return (
        f"From step {missing.first} to {missing.last}, {missing.count} micro-batches had no target, which is"
        f" {wording.percent(missing.share)} of the {missing.of} that were examined since the run began."
    )


VERDICT = Verdict(
    id="masked-labels",
    severity="ticket",
    title="A loss without targets",
    question="Are there losses without any target, because all of them are ignored or masked?",
    columns=(),
    events=("origin.found", "targets.missing"),
    state=State,
    rows=False,
    judge=judge,
    explains=(*origin_event.CONSEQUENCES, "gradient-spike", "stagnation"),
)
