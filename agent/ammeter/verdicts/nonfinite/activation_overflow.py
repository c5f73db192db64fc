"""activation-overflow: a module's output exceeds, or almost reaches, the largest float16."""

from __future__ import annotations

import msgspec

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.float16 import FLOAT16_MAX
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.nonfinite import origin_event as born
from ammeter.verdicts.nonfinite.origin_event import NonfiniteOrigin
from ammeter.wire.columns import View
from ammeter.wire.frames import Event

NEAR = 0.5
"""Share of 65504 at which one doubling is left: there is no room for a batch or a residual stream that grows by a bit.
The margin is reasoned, not measured."""

SINGULAR = ("Log", "Div", "Reciprocal", "Rsqrt", "Sqrt", "Pow")
"""Operators whose Inf may come from a division by zero or its log. No wider dtype prevents that."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    born: NonfiniteOrigin = NonfiniteOrigin()
    peak: float = 0.0
    module: str = ""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("origin.found", "activation.peaks"):
        if isinstance(part, Event):
            state = _born(state, part) if part.name == "origin.found" else _peaks(state, part)
    return state, changed(_conclude, before, state)


def _born(state: State, event: Event) -> State:
    source = born.of_event(event)
    if state.born.kind or not overflowed(source):
        return state
    if state.opened.active:
        return msgspec.structs.replace(state, born=source, opened=state.opened.until(event.step))
    return State(state.opened.at(source.first, event.step), source)


def overflowed(source: NonfiniteOrigin) -> bool:
    if source.kind != "forward" or source.dtype != "float16" or not source.infs or source.op == "loss":
        return False
    return not source.op.startswith(SINGULAR) and 0 <= source.absmax <= FLOAT16_MAX


def _peaks(state: State, event: Event) -> State:
    """Processes an event with peaks.

    The agent sends it at the end of a window, so its step is the window's last one.
    """
    modules = event.data.get("modules") or ()
    top = max(modules, key=lambda each: each.get("absmax", 0.0), default=None)
    if top is None or top.get("share", 0.0) < NEAR or state.opened.active:
        return state
    name = str(top.get("module", ""))[: born.MAX_NAME_CHARS]
    return State(state.opened.at(event.step, event.step), peak=float(top["absmax"]), module=name)


def _conclude(state: State) -> Finding:
    source = state.born
    passed = bool(source.kind)
    module = source.module if passed else state.module
    place = module or "the model's own code"
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"{module or 'The code of the model'} {'passes' if passed else 'comes near'} the largest float16",
        cause=_passed(source) if passed else _near(state, place),
        fix=f"Use dtype=torch.bfloat16 in autocast, which reaches 3e38. Or run {place} in float32: with"
        " torch.autocast(device, enabled=False) around it, and .float() on what goes in. Or bring down what goes in"
        f" with a norm or a clamp{f' below the {source.absmax:.4g} seen' if passed else ''}.",
        module=module or None,
        evidence={
            "infs": source.infs if passed else None,
            "op": source.op or None,
            "last_finite_absmax": source.absmax if passed else None,
            "absmax": state.peak or None,
            "limit": FLOAT16_MAX,
        },
        **lifecycle_fields(state.opened),
    )


def _passed(source: NonfiniteOrigin) -> str:
    op = f" ({source.op})" if source.op else ""
    return (
        f"{source.place}{op} was given finite numbers of at most {source.absmax:.4g} and made {source.infs} Inf in"
        " float16, whose largest number is 65504. The loss scale has no part in it: it multiplies the loss, behind all"
        " modules."
    )


def _near(state: State, place: str) -> str:
    return (
        f"What {place} gives reaches {state.peak:.5g} in float16, {wording.percent(state.peak / FLOAT16_MAX)} of the"
        " largest number, 65504. Where a batch or some steps of learning make it so much larger, it becomes Inf, and"
        " the loss NaN."
    )


VERDICT = Verdict(
    id="activation-overflow",
    severity="ticket",
    title="Activations overflow float16",
    question="Does what a module gives pass, or nearly reach, the largest float16?",
    columns=(),
    events=("origin.found", "activation.peaks"),
    state=State,
    rows=False,
    judge=judge,
    explains=("nonfinite-weights", "nonfinite-loss", "nonfinite-gradient", "scale-collapse", "overflow-storm"),
)
