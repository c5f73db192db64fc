"""masked-row-nan: a softmax over -Inf alone produces NaN, because a mask excludes a whole row."""

from __future__ import annotations

import msgspec

from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.nonfinite import origin_event as born
from ammeter.verdicts.nonfinite.origin_event import NonfiniteOrigin
from ammeter.wire.columns import View
from ammeter.wire.frames import Event

OVERFLOWS = 22.0
"""Largest input of a float16 attention whose NaN comes from a mask, not an overflow. A score is a sum over about 128
products, and 128 x 22.6 x 22.6 is 65504. For a separate softmax the scores themselves were read: they contained no
+Inf."""

OWN = ("Softmax", "LogSoftmax", "Softmin", "Softmax2d")
"""torch's modules that consist of a softmax only: their inputs are the scores, which were read."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    born: NonfiniteOrigin = NonfiniteOrigin()


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("origin.found"):
        if isinstance(part, Event) and not state.opened.active:
            source = born.of_event(part)
            if is_masked_row(source):
                state = State(state.opened.at(source.first, part.step), source)
    return state, changed(_conclude, before, state)


def is_masked_row(source: NonfiniteOrigin) -> bool:
    """Whether a softmax or an attention produced NaN and no Inf from valid inputs.

    Valid inputs are finite numbers, or the -Inf of a mask.
    """
    if source.kind != "forward" or not source.nans or source.infs:
        return False
    if source.type in OWN:
        return True
    attends = any(word in (source.op + source.type).lower() for word in ("softmax", "attention", "dotproduct"))
    return attends and (source.dtype != "float16" or 0 <= source.absmax < OVERFLOWS)


def _conclude(state: State) -> Finding:
    source = state.born
    op = f" ({source.op})" if source.op else ""
    sample = f" It shows first in sample {source.sample}, counted from 0." if source.sample >= 0 else ""
    own = source.type in OWN
    title = f"A fully masked row gives NaN at {source.place}"
    tells = "" if own else " Its scores were not read by themselves: a row of the mask that is closed altogether tells."
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=title if own else f"NaN as of a fully masked row at {source.place}",
        cause=f"{source.place}{op} was given no NaN and no +Inf and made {source.nans} NaN and no Inf: so does a"
        " softmax over a row in which the mask leaves nothing, all its scores -Inf, which is exp(-Inf) divided by a"
        f" sum of zero.{tells}{sample}",
        fix=f"Before {source.place}, keep the mask boolean and open the rows that it closes altogether: with True"
        " for kept out, masked = masked & ~masked.all(-1, keepdim=True); leave such rows out of the loss. Where"
        " masks are added, add one: twice torch.finfo(dtype).min is -Inf, and so is -1e9 in float16.",
        module=source.module or None,
        evidence={
            "op": source.op or None,
            "nans": source.nans,
            "sample": source.sample if source.sample >= 0 else None,
            "dtype": source.dtype or None,
            "last_finite_absmax": source.absmax if source.absmax >= 0 else None,
        },
        **lifecycle_fields(state.opened),
    )


VERDICT = Verdict(
    id="masked-row-nan",
    severity="ticket",
    title="A fully masked row",
    question="Does a softmax over a fully masked row make NaN?",
    columns=(),
    events=("origin.found",),
    state=State,
    rows=False,
    judge=judge,
    explains=("nonfinite-weights", "nonfinite-loss", "nonfinite-gradient", "scale-collapse", "overflow-storm"),
)
