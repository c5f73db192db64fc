"""lost-updates: rounding removes updates of half-precision weights, or of copies such as an EMA."""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict, module_of
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.readings import Readings
from ammeter.wire.columns import View, measured
from ammeter.wire.frames import Event, Schema

HALF_DTYPES = ("float16", "bfloat16")
"""Dtypes that are checked. In float32 an update is lost only after the learning rate has reached zero, and an update of
a copy only if the program no longer updates it."""

MIN_LOST_SHARE = 0.5
"""Share of the elements read that did not change although the step should change them. In bfloat16 an update below
1/512 of its weight is rounded away, and AdamW at a learning rate of 1e-5 on weights of 0.02 is at 1/2000, so nearly all
updates are lost. Zamirai et al. 2020, Revisiting BFloat16 Training: this, not the arithmetic, costs such runs their
quality."""

MIN_READINGS = 3
MIN_SPAN_STEPS = 20
"""Readings in a row over so many steps. A warm-up begins with steps too small for any half precision, and a copy
without a sign of an update is read at most every 20 steps."""

COPY_READINGS = 8
"""Readings in a row that suffice for a copy, over fewer steps than MIN_SPAN_STEPS. A warm-up does not explain them: as
long as the weights hardly move, they do not differ from the copy either."""

CHANGING_READINGS = 5
"""The same for a copy of which some elements have changed: it is updated, not rarely replaced."""

CLEAN_READINGS = 3
"""Readings in a row below MIN_LOST_SHARE that close the verdict."""

MIN_RELATIVE_UPDATE = {"bfloat16": "1/512", "float16": "1/4096"}
"""2^-9 and 2^-12: half the distance to the next number, for numbers just below a power of two."""

WEIGHTS = ""
MAX_COPIES = 4
"""Copies that are followed in addition to the weights."""


CONSTANT_SHARE = 0.9999
"""Share from which no sampled element has changed; the last reading of a copy shows it exactly."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """The weights, or one copy with its name.

    Attributes:
        readings: Readings in a row above MIN_LOST_SHARE.
        clean: Readings in a row below MIN_LOST_SHARE since then.
        first: Step of the first of these readings.
    """

    copy: str
    readings: int = 0
    clean: int = 0
    first: int = -1
    share: float = 0.0
    tensor: str = ""
    dtype: str = ""

    @property
    def is_constant(self) -> bool:
        """Whether no element of a copy changed at all, which a copy that is rarely replaced has in common."""
        return self.copy != WEIGHTS and self.share >= CONSTANT_SHARE


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    masters: bool = False
    reported_copy: str = ""
    """The part that the finding is about."""
    parts: tuple[Part, ...] = ()


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("weights.census"):
        if isinstance(part, View):
            state = _rows(state, part)
        elif isinstance(part, Event):
            state = replace(state, masters=bool(part.data.get("masters")))
    return state, changed(_conclude, before, state)


def _rows(state: State, rows: View) -> State:
    half = [at for at, tensor in enumerate(rows.schema.tensors) if tensor.dtype in HALF_DTYPES]
    if not half:
        return state
    lost = np.ascontiguousarray(rows.stat("update.lost")[half])
    read = measured(lost) & np.isfinite(lost)
    if not read.any():
        return state
    copies, numel = _copies(rows.schema, half), rows.numel[half].astype(np.float64)
    for at in np.flatnonzero(read.any(axis=0)).tolist():
        for copy in dict.fromkeys(copies):
            own = read[:, at] & np.array([name == copy for name in copies])
            if not own.any() or (copy == WEIGHTS and state.masters):
                continue
            shares = np.where(own, lost[:, at] * numel, 0.0)
            tensor = rows.schema.tensors[half[int(shares.argmax())]]
            share = float(shares.sum() / max(1.0, float(numel[own].sum())))
            state = _read(state, Part(copy, 1, 0, int(rows.steps[at]), share, tensor.name, tensor.dtype))
    return state


def _copies(schema: Schema, half: list[int]) -> list[str]:
    """Returns for each tensor the name of its copy, such as 'ema' in 'ema.fc.weight'.

    Weights, which belong to no copy, have WEIGHTS.
    """
    names = {tensor.name for tensor in schema.tensors}
    split = (schema.tensors[at].name.partition(".") for at in half)
    return [first if name in names else WEIGHTS for first, _, name in split]


def _read(state: State, reading: Part) -> State:
    """Adds one reading of one part; the reading's `first` is its step."""
    known = next((part for part in state.parts if part.copy == reading.copy), None)
    if known is None and len(state.parts) > MAX_COPIES:
        return state
    step, others = reading.first, tuple(part for part in state.parts if part.copy != reading.copy)
    before = known or Part(reading.copy)
    reported = state.opened.active and state.reported_copy == reading.copy
    if reading.share < MIN_LOST_SHARE:
        clean = before.clean + 1
        over = clean >= CLEAN_READINGS
        part = replace(before, clean=clean, readings=before.readings if reported and not over else 0)
        opened = state.opened.over() if reported and over else state.opened
        return replace(state, opened=opened, parts=(*others, part))
    first = before.first if before.readings else step
    part = replace(reading, readings=min(before.readings + 1, COPY_READINGS), first=first)
    state = replace(state, parts=(*others, part))
    is_long = part.readings >= MIN_READINGS and step - first >= MIN_SPAN_STEPS
    is_many = part.copy != WEIGHTS and part.readings >= (COPY_READINGS if part.is_constant else CHANGING_READINGS)
    if not reported and (state.opened.active or not (is_long or is_many)):
        return state
    return replace(state, opened=state.opened.at(first, step), reported_copy=reading.copy)


def _conclude(state: State) -> Finding:
    part = next(part for part in state.parts if part.copy == state.reported_copy)
    copy = f'the copy "{part.copy}"' if part.copy else ""
    subject = copy or "the weights"
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f'The {part.dtype} copy "{part.copy}" does not change'
        if part.is_constant
        else f"{wording.percent(part.share)} of the updates of {subject} are rounded away in {part.dtype}",
        cause=_cause(part, copy),
        fix=_fix(part),
        tensor=part.tensor,
        module=module_of(part.tensor),
        evidence={"lost_share": round(part.share, 4), "dtype": part.dtype, "copy": part.copy or None},
        **lifecycle_fields(state.opened),
    )


def _cause(part: Part, copy: str) -> str:
    subject = copy or "the weights"
    limit = MIN_RELATIVE_UPDATE.get(part.dtype, "1/512")
    if part.is_constant:
        return (
            f"The readings of {copy} since step {part.first} show no change, although its numbers differ from the"
            f" weights. If the program updates it in each step, rounding removes the updates: in {part.dtype} a change"
            f" of less than {limit} of a number has no effect. A copy that the program replaces rarely looks the same."
        )
    return (
        f"Rounding removes updates of {subject}: in {part.dtype} a change of less than {limit} of a number has no"
        f" effect, so {'the copy hardly follows the weights' if copy else 'the weights hardly follow their gradients'}."
        f" {wording.percent(part.share)} of the elements that should have changed did not, the largest share"
        f" in {part.tensor}.{' This is about the copy, not about the weights in training.' if copy else ''}"
    )


def _fix(part: Part) -> str:
    if part.copy:
        keep = "If it is an average, keep" if part.is_constant else "Keep"
        return (
            f'{keep} "{part.copy}" in float32: create it anew with copy.deepcopy(model).float() and update it with'
            " weight.float(). A moving average (EMA) with a decay of 0.999 moves by a thousandth of its distance to the"
            f" weights in each step; {part.dtype} drops a change below"
            f" {MIN_RELATIVE_UPDATE.get(part.dtype, '1/512')} of a number."
        )
    return (
        f"Keep the weights in float32 (model.float()) and use torch.autocast(device, dtype=torch.{part.dtype}) for"
        " the forward pass. If memory is short, use an optimizer with float32 master weights, Kahan summation or"
        " stochastic rounding. A larger learning rate hides the problem."
    )


VERDICT = Verdict(
    id="lost-updates",
    severity="ticket",
    title="Updates are lost to rounding",
    question="Are updates of weights or copies in half precision rounded away?",
    columns=("update.lost",),
    events=("weights.census",),
    needs=(Readings("lost_updates", MIN_READINGS, within=500),),
    applies=lambda facts: facts.half_tensors > 0,
    state=State,
    judge=judge,
    explains=("stagnation",),
)
