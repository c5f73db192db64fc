"""half-optimizer-state: the optimizer's state is in half precision."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.wire.columns import View
from ammeter.wire.frames import Event, Hello

HALF_DTYPES = ("float16", "bfloat16")

MIN_HALF_SHARE = 0.05
"""Minimum share of the state's elements. Below it a few small tensors, such as the two vectors of a factored moment or
the state of an adapter, are in half precision on purpose. Integers, the state of 8-bit optimizers, have their own
scales."""

USUAL_BETA2 = 0.999
"""The default of torch.optim.Adam and AdamW."""

BFLOAT16_LIMIT = 2.0**-8
"""Change of a bfloat16 number, in shares of it, that is always rounded away below half of this limit, and is not from
it on."""

ANY_STATE = {
    "bfloat16": "bfloat16 has 8 significant bits, so it cannot hold a change by less than 0.002 to 0.004 of a number.",
    "float16": "float16 ranges from 6e-08 to 65504 and has 11 significant bits, so it can hold neither smaller nor"
    " larger numbers, nor a change by less than 0.0002 to 0.0005 of a number.",
}
"""Limits of the two formats. In bfloat16 (8 bits), 2^-9 to 2^-8 of a number is half the distance to the next one, in
float16 (11 bits) 2^-12 to 2^-11. 2^-24 and 65504 bound float16."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    dtype: str = ""
    half: int = 0
    elements: int = 0
    weights: tuple[str, ...] = ()
    """Dtypes of the trainable weights."""
    names: tuple[str, ...] = ()
    """Names of half-precision states; empty in recordings of earlier releases."""
    optimizer: str = ""
    beta2: float = 0.0
    """Decay of the second moment, as the stream's hello has it; 0 if not known."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("hello", "weights.census"):
        if isinstance(part, Hello):
            beta2 = re.fullmatch(r"\([\d.]+, ([\d.]+)\)", str(part.environment.get("optimizer.betas", "")))
            name = str(part.environment.get("optimizer", ""))[:40]
            state = replace(state, optimizer=name, beta2=float(beta2[1]) if beta2 else 0.0)
        elif isinstance(part, Event):
            state = _counted(state, part)
    return state, changed(_conclude, before, state)


def _counted(state: State, event: Event) -> State:
    counts: dict[str, int] = event.data.get("state") or {}
    elements, half = sum(counts.values()), {dtype: counts[dtype] for dtype in HALF_DTYPES if dtype in counts}
    if not elements or sum(half.values()) < MIN_HALF_SHARE * elements:
        return replace(state, opened=state.opened.over()) if elements and state.opened.active else state
    weights = tuple(sorted(event.data.get("trainable") or {}))[:4]
    dtype = max(half, key=lambda name: (half[name], name))
    opened = state.opened.at(event.step, event.step)
    names = tuple(str(name) for name in event.data.get("half_state") or ())[:4]
    state = replace(state, opened=opened, dtype=dtype, half=sum(half.values()), elements=elements)
    return replace(state, weights=weights, names=names)


def _conclude(state: State) -> Finding:
    share = state.half / max(1, state.elements)
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"{_whose(state)} state is in {state.dtype}",
        cause=f"{_whose(state)} state is in half precision ({wording.percent(share)}, {state.half} of"
        f" {state.elements} numbers{_named(state)}), so its steps are rounded. {_why(state)}",
        fix=_fix(state),
        evidence=_evidence(state, share),
        **lifecycle_fields(state.opened),
    )


def _whose(state: State) -> str:
    return f"{state.optimizer}'s" if state.optimizer else "The optimizer's"


def _named(state: State) -> str:
    return f": {wording.listed(state.names)}" if state.names else ""


def _why(state: State) -> str:
    is_squared = any("sq" in name for name in state.names)  # exp_avg_sq of torch's Adam, square_avg of RMSprop
    if not is_squared:
        return ANY_STATE[state.dtype]
    gain = 1 - (state.beta2 or USUAL_BETA2)
    share = f"(1 - beta2) = {gain:.2g}" + ("" if state.beta2 else " by default")
    if state.dtype == "float16":
        low, high = (2.0**-25 / gain) ** 0.5, 65504**0.5
        return (
            f"A second moment gains the share {share} of the squared gradient per step. In float16, which ranges from"
            f" 6e-08 to 65504, it stays zero for gradients below {low:.1g} and becomes Inf if they stay above"
            f" {high:.0f}."
        )
    if gain < BFLOAT16_LIMIT / 2:
        return (
            f"A second moment decays by the share {share} per step, which is less than bfloat16's rounding limit of"
            " 0.002 to 0.004, so it does not fall again after large gradients."
        )
    return ANY_STATE[state.dtype]


def _fix(state: State) -> str:
    if set(state.weights) & set(HALF_DTYPES):
        return (
            "Keep the trained weights in float32 and use torch.autocast for the forward pass: PyTorch's optimizers"
            " create their state in the dtype of the weight."
        )
    names = wording.listed(state.names) if state.names else "the state"
    weights = f", {state.weights[0]} here" if len(state.weights) == 1 else ""
    return (
        f"Remove the cast of {names} to {state.dtype}, in the program or in its optimizer class: torch's own optimizers"
        f" create them in the dtype of the weights{weights}. The state can still be used: load_state_dict() casts it to"
        " that dtype. If memory is short, an 8-bit optimizer with scales loses less precision."
    )


def _evidence(state: State, share: float) -> dict[str, Any]:
    return {
        "dtype": state.dtype,
        "half_share": round(share, 4),
        "half_elements": state.half,
        "elements": state.elements,
        "trainable": list(state.weights),
        "states": list(state.names) or None,
    }


VERDICT = Verdict(
    id="half-optimizer-state",
    severity="ticket",
    title="Optimizer state in half precision",
    question="Is the optimizer's state in half precision?",
    columns=(),
    events=("weights.census",),
    state=State,
    rows=False,
    judge=judge,
)
