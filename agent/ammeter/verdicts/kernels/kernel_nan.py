"""kernel-nan: a kernel makes NaN or Inf from finite inputs, and another one does not."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.origins import origin_event, trial_wording
from ammeter.verdicts.framework.origins.origin_event import NonfiniteOrigin
from ammeter.verdicts.kernels.known_bugs import KnownBug, of_machine
from ammeter.wire.columns import View
from ammeter.wire.frames import Event, Hello

ENVIRONMENT = ("torch", "device", "cpu", "capability", "cudnn")
"""Facts of the run that decide which kernel an operator has."""

MAX_FACT_CHARS = 60
"""Maximum characters of a fact in the state."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    origin: NonfiniteOrigin = NonfiniteOrigin()
    weight: str = ""
    """A weight that was read after the kernel's first NaN and contains NaN or Inf."""
    environment: dict[str, str] = {}


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    if not view.frames:
        return state, None
    before = state
    for part in view.parts("hello", *VERDICT.events):
        if isinstance(part, Hello):
            facts = {name: part.environment.get(name, "")[:MAX_FACT_CHARS] for name in ENVIRONMENT}
            state = replace(state, environment={name: fact for name, fact in facts.items() if fact})
        elif isinstance(part, Event):
            state = _event(state, part)
    return state, changed(_conclude, before, state)


def _event(state: State, event: Event) -> State:
    if event.name == "weights.nonfinite":
        tensors = event.data.get("tensors") or ["a weight"]
        name = str(tensors[0])[: origin_event.MAX_NAME_CHARS]
        return replace(state, weight=name) if state.opened.active and not state.weight else state
    data = event.data if event.name == "origin.found" else event.data.get("origin") or {}
    origin = origin_event.of_event(Event(event.name, event.step, 0, data))
    if origin.trial in trial_wording.KERNEL_FAULTS and not state.opened.active:
        return replace(state, opened=state.opened.at(origin.first, event.step), origin=origin)
    if state.opened.active and origin.refines(state.origin):
        return replace(state, origin=state.origin.refined_by(origin))
    return state


def _conclude(state: State) -> Finding:
    origin = state.origin
    backward = origin.kind == "backward"
    kind = f"{origin.dtype} " * bool(origin.dtype) + "backward " * backward
    where = f"at {origin.line}" if origin.line else f"in {origin.place}"
    return Finding(
        verdict=VERDICT.id,
        severity="ticket" if backward and not state.weight else "page",
        title=f"A {kind}kernel of {origin.operator} makes NaN or Inf {where}",
        cause=f"{_made(origin)}{_weights(state)}",
        fix=f"{origin.fix()}{_known(state)}",
        module=origin.module or None,
        caller=origin.line or None,
        evidence=_evidence(state),
        **lifecycle_fields(state.opened),
    )


def _made(origin: NonfiniteOrigin) -> str:
    """Returns which operator made the NaN or Inf, in which pass, and the proof that its kernel is wrong."""
    if not origin.is_first or origin.reason == "constant":
        return origin.words().strip()
    forward = origin.kind == "forward"
    size = f", from {'inputs' if forward else 'gradients'} of at most {origin.absmax:.4g}" if origin.absmax >= 0 else ""
    how = ", ".join(filter(None, (origin.dtype, origin.line)))
    return (
        f"In the {'forward' if forward else 'backward'} pass, {origin.operator} in {origin.place}"
        f"{f' ({how})' if how else ''} made a NaN or an Inf{size}."
        f"{trial_wording.cause(origin.trial, origin.dtype, origin.exact)}"
    )


def _weights(state: State) -> str:
    return f" Since then the weights contain NaN or Inf, {state.weight} among them." if state.weight else ""


def _known(state: State) -> str:
    """Names a known bug that matches. It need not be the reason: its shapes are not compared."""
    return "".join(
        f" A known bug that matches operator and machine: {bug.url} ({bug.condition}); its remedy: {bug.remedy}."
        for bug in _known_bugs(state)[:1]
    )


def _known_bugs(state: State) -> list[KnownBug]:
    origin = state.origin
    found = of_machine(state.environment, origin.device)
    return [bug for bug in found if bug.fits_operator(origin.op, origin.kind, origin.dtype)]


def _evidence(state: State) -> dict[str, Any]:
    origin = state.origin
    return {
        "born_in": origin.kind,
        **origin.evidence(),
        "dtype": origin.dtype or None,
        **origin.trial_evidence(),
        "exact_absmax": origin.exact if origin.exact >= 0 else None,
        "nans": origin.nans,
        "infs": origin.infs,
        "nonfinite_weight": state.weight or None,
        "known_bugs": [bug.thread for bug in _known_bugs(state)],
        **state.environment,
    }


VERDICT = Verdict(
    id="kernel-nan",
    severity="page",
    title="A kernel makes NaN",
    question="Does a kernel make NaN or Inf from finite inputs, where another one gives a finite result?",
    columns=(),
    events=("origin.found", "step.unfinished", "weights.nonfinite"),
    state=State,
    rows=False,
    judge=judge,
    explains=(
        *origin_event.CONSEQUENCES,
        "gradient-underflow",
        "gradients-not-reset",
        "lopsided-step",
        "scheduler-ahead",
    ),
)
