"""cast-churn: the same weights are cast to half precision repeatedly within one forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.readings import Readings, under_autocast
from ammeter.verdicts.low_precision.cast_cost import MIN_TIME_SHARE, time_share, written
from ammeter.wire.columns import View
from ammeter.wire.frames import Event, Hello

HALF_BYTES = 2
"""Bytes of a weight in float16 or bfloat16. Autocast casts each weight once and keeps the copy until its context
ends."""

MIN_RECAST_SHARE = 0.5
"""Bytes of repeated casts over the bytes of one cast of all weights: a small module that is used twice is harmless."""

BYTES_MOVED_PER_BYTE = 3
"""Bytes moved per byte that such a cast writes: four are read in float32 for two that are written."""


Why = Literal["", "off", "frozen", "cleared"]
"""Why the same weights are cast again: autocast's cache is off, they need no gradient, or its context ended in between.
"" is unknown."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    ranks: int = 1
    weights: int = 0
    """Number of elements of the whole model, over all ranks."""
    casts: int = 0
    cast_bytes: int = 0
    recast_bytes: int = 0
    flops: int = 0
    why: Why = ""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    if not view.frames:
        return state, None
    before = state
    for part in view.parts("hello", "kernels.census"):
        if isinstance(part, Hello):
            state = replace(state, ranks=part.world_size, weights=_weights(part))
        elif isinstance(part, Event) and part.data.get("phase") == "forward" and not state.opened.active:
            state = _counted(state, part)
    return state, changed(_conclude, before, state)


def _weights(hello: Hello) -> int:
    """Returns the number of elements; sharded tensors are summed over the ranks."""
    tensors = hello.schema.tensors
    return sum(tensor.numel * (hello.world_size // tensor.copies if tensor.copies else 1) for tensor in tensors)


def _counted(state: State, event: Event) -> State:
    casts, cast, recast, flops = (
        int(event.data.get(name, 0)) for name in ("casts", "cast_bytes", "recast_bytes", "flops_low")
    )
    counted = replace(state, casts=casts, cast_bytes=cast, recast_bytes=recast, flops=flops, why=_why(event, recast))
    opens = (
        state.weights > 0
        and _recasts_per_weight(counted) >= MIN_RECAST_SHARE
        and time_share(recast * BYTES_MOVED_PER_BYTE, flops) >= MIN_TIME_SHARE
    )
    return replace(counted, opened=state.opened.at(event.step, event.step)) if opens else state


def _why(event: Event, recast: int) -> Why:
    """Returns why most of the casts are repeated; "" where an older version of the agent did not record it."""
    uncached, frozen = (event.data.get(name) for name in ("uncached_bytes", "frozen_bytes"))
    if not isinstance(uncached, int) or not isinstance(frozen, int):
        return ""
    if 2 * uncached > recast:
        return "off"
    return "frozen" if 2 * frozen > recast else "cleared"


def _recasts_per_weight(state: State) -> float:
    return state.recast_bytes / (HALF_BYTES * state.weights)


def _conclude(state: State) -> Finding:
    times = _recasts_per_weight(state)
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"Autocast casts the same weights repeatedly: {_share(state)} of the bytes cast are repeats",
        cause=_cause(state, times),
        fix=FIXES[state.why],
        evidence=_evidence(state, times),
        **lifecycle_fields(state.opened),
    )


CAUSES: Mapping[Why, str] = {
    "off": "They were cast while autocast's cache was off: with it, each weight is cast once in a forward pass.",
    "frozen": "These weights need no gradient, and autocast keeps no copy of such weights.",
    "cleared": "Autocast keeps such a copy until its outermost context ends, which happened in between.",
    "": "Autocast keeps such a copy until the outermost autocast context ends, unless its cache is disabled or does not"
    " apply.",
}
"""Why the same weights are cast again -> the sentence that says so."""

FIXES: Mapping[Why, str] = {
    "off": "Remove cache_enabled=False from torch.autocast(), or torch.set_autocast_cache_enabled(False).",
    "frozen": "Cast the frozen weights once, before the training: frozen_module.to(torch.float16), or torch.bfloat16 if"
    " that is the dtype of autocast.",
    "cleared": "Enter torch.autocast once around the whole forward pass, not once per layer or micro-batch.",
    "": "Remove cache_enabled=False and set_autocast_cache_enabled(False), which disable autocast's cache. If there"
    " are none, enter torch.autocast once around the whole forward pass instead of once per layer or micro-batch."
    " Autocast does not cache frozen weights or slices of weights: cast those once, before the loop that uses them.",
}


def _share(state: State) -> str:
    return wording.percent(state.recast_bytes / max(1, state.cast_bytes))


def _cause(state: State, times: float) -> str:
    return (
        f"Autocast casts the same weights to half precision again and again: {_share(state)} of the bytes that"
        f" casts write in a forward pass are repeated, {times:.1f} times the size of all weights in half precision"
        f" (repeated: {written(state.recast_bytes)}; all casts: {written(state.cast_bytes)}). {CAUSES[state.why]}"
    )


def _evidence(state: State, times: float) -> dict[str, Any]:
    return {
        "recast_bytes": state.recast_bytes,
        "cast_bytes": state.cast_bytes,
        "casts": state.casts,
        "weights_half_bytes": HALF_BYTES * state.weights,
        "times_all_weights": round(times, 2),
        **({"reason": state.why} if state.why else {}),
    }


VERDICT = Verdict(
    id="cast-churn",
    severity="ticket",
    title="Weights cast repeatedly",
    question="Does autocast cast the same weights to half precision repeatedly within one forward pass?",
    columns=(),
    events=("kernels.census",),
    needs=(Readings("kernels.census", 1, within=1000),),
    applies=under_autocast,
    state=State,
    rows=False,
    judge=judge,
    explains=("slower-than-fp32",),
)
