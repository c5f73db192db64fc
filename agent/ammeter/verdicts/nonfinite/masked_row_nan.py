"""masked-row-nan: a softmax over -Inf alone produces NaN, because a mask excludes a whole row."""

from __future__ import annotations

from typing import Any

import msgspec

from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.origins import origin_event
from ammeter.verdicts.framework.origins.origin_event import NonfiniteOrigin
from ammeter.wire.columns import View
from ammeter.wire.frames import Event

MAX_HALF_INPUT = 22.0
"""Largest input of a float16 attention whose NaN comes from a mask, not an overflow. A score is a sum over about 128
products, and 128 x 22.6 x 22.6 is 65504. For a separate softmax the scores themselves were read: they contained no
+Inf."""

SOFTMAX_MODULES = ("Softmax", "LogSoftmax", "Softmin", "Softmax2d")
"""torch's modules that consist of a softmax only: their inputs are the scores, which were read."""


OWN_FUNCTION = "Backward"
"""Ending of the operator of a torch.autograd.Function, whose name is the program's; torch's own names end in a number.
What such a function does with a masked row is not known."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    origin: NonfiniteOrigin = NonfiniteOrigin()
    refuted: str = ""
    """An operator that is finite in float64: it ran again. Hooks find it, too, and run nothing again."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("origin.found"):
        if isinstance(part, Event):
            origin = origin_event.of_event(part)
            if origin.trial not in ("", "undefined"):
                state = msgspec.structs.replace(state, refuted=origin.op)
            elif origin.op and origin.op == state.refuted and not origin.trial:
                continue
            elif is_masked_row(origin) and (not state.opened.active or origin.refines(state.origin)):
                state = State(state.opened.at(origin.first, part.step), origin)
    return state, changed(_conclude, before, state)


def is_masked_row(origin: NonfiniteOrigin) -> bool:
    """Whether a softmax or an attention produced NaN and no Inf from valid inputs.

    Valid inputs are finite numbers, or the -Inf of a mask. A division of rows by their sums is a softmax, too.
    """
    if origin.kind != "forward" or not origin.nans or origin.infs:
        return False
    if origin.reason == "row":
        return True
    if origin.type in SOFTMAX_MODULES:
        return True
    if origin.op.endswith(OWN_FUNCTION):
        return False
    attends = any(word in (origin.op + origin.type).lower() for word in ("softmax", "attention", "dotproduct"))
    return attends and (origin.dtype != "float16" or 0 <= origin.absmax < MAX_HALF_INPUT)


def _conclude(state: State) -> Finding:
    origin = state.origin
    certain = origin.type in SOFTMAX_MODULES or origin.reason == "row"
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=_title(origin, certain),
        cause=_cause(origin, certain),
        fix=_fix(origin),
        module=origin.module or None,
        evidence=_evidence(origin),
        **lifecycle_fields(state.opened),
    )


def _title(origin: NonfiniteOrigin, certain: bool) -> str:
    if origin.reason == "row":
        return f"A row whose sum is 0 makes {origin.place} return NaN"
    if certain:
        return f"A fully masked row makes {origin.place} return NaN"
    return f"{origin.place} returns NaN, as for a fully masked row"


def _fix(origin: NonfiniteOrigin) -> str:
    if origin.reason == "row":
        return (
            f"In {origin.place}, add an eps to the sum before the division, such as"
            " x / (x.sum(-1, keepdim=True) + 1e-6), or 1e-3 in float16. If a mask zeroes such rows, unmask rows that"
            " are masked completely, or leave them out of the loss."
        )
    return (
        f"Before {origin.place}, unmask rows that are masked completely: with a boolean mask in which True excludes,"
        " masked = masked & ~masked.all(-1, keepdim=True). Leave such rows out of the loss. If the mask is a number"
        f" that is added to the scores, add it once{_too_low(origin)}."
    )


def _too_low(origin: NonfiniteOrigin) -> str:
    """Returns what such a number must not be in the dtype of the scores."""
    if origin.dtype == "float16":
        return " and make it no lower than -30000: float16 turns -1e9, and a sum below -65504, into -Inf"
    return ": the sum of two masks of torch.finfo(dtype).min is -Inf"


def _cause(origin: NonfiniteOrigin, certain: bool) -> str:
    op = f" ({origin.operator})" if origin.op else ""
    if origin.reason == "row":
        return (
            f"{origin.place}{op} divides each row by its sum. It returned {origin.nans} NaN and no Inf from inputs that"
            " are finite, as 0/0 does for a row of zeros, with or without a mask."
        )
    sample = f" Sample {origin.sample}, counted from 0, is the first with NaN." if origin.sample >= 0 else ""
    unread = "" if certain else " The scores themselves were not read; check the mask for such a row."
    return (
        f"{origin.place}{op} returned {origin.nans} NaN and no Inf from inputs without NaN or +Inf, as softmax does for"
        f" a row whose scores are all masked with -Inf: it divides 0 by 0.{unread}{sample}"
    )


def _evidence(origin: NonfiniteOrigin) -> dict[str, Any]:
    return {
        **origin.evidence(),
        "dtype": origin.dtype or None,
        "nans": origin.nans,
        "sample": origin.sample if origin.sample >= 0 else None,
    }


VERDICT = Verdict(
    id="masked-row-nan",
    severity="ticket",
    title="A fully masked row",
    question="Does a softmax over a fully masked row return NaN?",
    columns=(),
    events=("origin.found",),
    state=State,
    rows=False,
    judge=judge,
    explains=origin_event.CONSEQUENCES,
)
