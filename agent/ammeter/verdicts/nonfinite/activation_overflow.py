"""activation-overflow: a module's output exceeds, or almost reaches, the largest float16."""

from __future__ import annotations

from typing import Any

import msgspec

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.float16 import FLOAT16_MAX
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.origins import origin_event
from ammeter.verdicts.framework.origins.origin_event import NonfiniteOrigin
from ammeter.wire.columns import View
from ammeter.wire.frames import Event

MIN_PEAK_SHARE = 0.5
"""Share of 65504 at which one doubling is left: no headroom remains for a batch or a residual stream that grows by a
bit. The margin is reasoned, not measured."""

SINGULAR_OPERATORS = ("Log", "Div", "Reciprocal", "Rsqrt", "Sqrt", "Pow")
"""Operators whose Inf may come from a division by zero or its log, which no wider dtype prevents, if it was not
computed again in one."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    origin: NonfiniteOrigin = NonfiniteOrigin()
    peak: float = 0.0
    module: str = ""
    refuted: str = ""
    """An operator that ran again, which shows no overflow. Hooks find it, too, and run nothing again."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("origin.found", "activation.peaks"):
        if isinstance(part, Event):
            state = _origin(state, part) if part.name == "origin.found" else _peaks(state, part)
    return state, changed(_conclude, before, state)


def _origin(state: State, event: Event) -> State:
    origin = origin_event.of_event(event)
    if origin.trial not in ("", "range"):
        return msgspec.structs.replace(state, refuted=origin.op)
    if origin.op and origin.op == state.refuted and not origin.trial:
        return state
    if not overflowed(origin) or (state.origin.kind and not origin.refines(state.origin)):
        return state
    if state.opened.active:
        return msgspec.structs.replace(state, origin=origin, opened=state.opened.until(event.step))
    return State(state.opened.at(origin.first, event.step), origin)


def overflowed(origin: NonfiniteOrigin) -> bool:
    """Whether a float16 operator produced an Inf from finite inputs, other than by division by zero.

    The reason `range` proves it: with the same operands in float64 the output is finite. Any other answer of a trial
    refutes it, and so does `constant`: an operand from outside the graph was not finite.
    Inputs that were not read are finite if the operator is the first one of its graph with an Inf.
    """
    if origin.kind != "forward" or origin.dtype != "float16" or not origin.infs or origin.op == "loss":
        return False
    if origin.reason == "range":
        return True
    if origin.trial or origin.reason == "constant":
        return False
    return not origin.op.removeprefix("Foreach").startswith(SINGULAR_OPERATORS) and (
        0 <= origin.absmax <= FLOAT16_MAX or (origin.absmax < 0 and origin.is_first)
    )


def _peaks(state: State, event: Event) -> State:
    """Processes an event with peaks.

    The agent sends it at the end of a window, so its step is the window's last one.
    """
    modules = event.data.get("modules") or ()
    top = max(modules, key=lambda module: module.get("absmax", 0.0), default=None)
    if top is None or top.get("share", 0.0) < MIN_PEAK_SHARE or state.opened.active:
        return state
    name = str(top.get("module", ""))[: origin_event.MAX_NAME_CHARS]
    return State(state.opened.at(event.step, event.step), peak=float(top["absmax"]), module=name)


def _conclude(state: State) -> Finding:
    origin = state.origin
    passed = bool(origin.kind)
    module = origin.module if passed else state.module
    place = module or "the model's own code"
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"The output of {place} {'exceeds' if passed else 'comes close to'} the largest float16",
        cause=_passed(origin) if passed else _near(state, place),
        fix=_fix(origin, place, state.opened.first),
        module=module or None,
        evidence=_evidence(state, passed),
        **lifecycle_fields(state.opened),
    )


def _fix(origin: NonfiniteOrigin, place: str, first: int) -> str:
    bfloat16 = "dtype=torch.bfloat16 in autocast, whose range reaches 3e38"
    if _factor(origin):
        return (
            f"Remove the large factor in {place}: look for what multiplies by it since step {first}. If outputs above"
            f" 65504 are intended, use {bfloat16}."
        )
    float32 = "in float32, under torch.autocast(device_type, enabled=False) and with .float() on its inputs"
    return (
        f"Use {bfloat16}. Or make the inputs of {place} smaller, with a norm or a clamp, or run it {float32}, as far as"
        " what follows it does not cast the result to float16 again."
    )


def _factor(origin: NonfiniteOrigin) -> float:
    """Returns the factor that a product of such small inputs must have to overflow; 0 if a float16 number suffices."""
    if origin.operator != "Mul" or not 0 < origin.absmax < 1:
        return 0.0
    return FLOAT16_MAX / origin.absmax


def _evidence(state: State, passed: bool) -> dict[str, Any]:
    return {
        "infs": state.origin.infs if passed else None,
        **state.origin.evidence(),
        "absmax": state.peak or None,
        "limit": FLOAT16_MAX,
    }


def _passed(origin: NonfiniteOrigin) -> str:
    op = f" ({origin.op})" if origin.op else ""
    most = f", at most {origin.absmax:.4g}" if origin.absmax >= 0 else ""
    factor = _factor(origin)
    product = f" To overflow, they must be multiplied by more than {wording.figure(factor)}." if factor else ""
    return (
        f"The output of {origin.place}{op} overflowed float16, whose largest value is 65504: {origin.infs} of its"
        f" values are Inf although its inputs are finite{most}.{product} A lower loss scale does not help, because it"
        " multiplies the loss, after all modules."
    )


def _near(state: State, place: str) -> str:
    return (
        f"The output of {place} reaches {state.peak:.5g} in float16, {wording.percent(state.peak / FLOAT16_MAX)} of the"
        f" largest value, 65504. If a batch or further training makes it {FLOAT16_MAX / state.peak:.2g} times as large,"
        " it becomes Inf and the loss NaN."
    )


VERDICT = Verdict(
    id="activation-overflow",
    severity="ticket",
    title="Activations overflow float16",
    question="Does the output of a module exceed, or nearly reach, the largest float16?",
    columns=(),
    events=("origin.found", "activation.peaks"),
    state=State,
    rows=False,
    judge=judge,
    explains=origin_event.CONSEQUENCES,
)
