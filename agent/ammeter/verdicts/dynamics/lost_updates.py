"""lost-updates: rounding removes updates of half-precision weights, or of copies such as an EMA."""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict, module_of
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.wire.columns import View, measured
from ammeter.wire.frames import Event, Schema

HALF = ("float16", "bfloat16")
"""Dtypes that are checked. In float32 an update is lost only after the learning rate has reached zero, and an update of
a copy only if the program no longer updates it."""

LOST = 0.5
"""Share of the elements read that did not change although the step should change them. In bfloat16 an update below
1/512 of its weight is rounded away, and AdamW at a learning rate of 1e-5 on weights of 0.02 is at 1/2000, so nearly all
updates are lost. Zamirai et al. 2020, Revisiting BFloat16 Training: this, not the arithmetic, costs such runs their
quality."""

READINGS = 3
SPAN = 20
"""Readings in a row over so many steps. A warm-up begins with steps too small for any half precision, and a copy
without a sign of an update is read at most every 20 steps."""

CLEAN = 3
"""Readings in a row below LOST that close the verdict."""

SMALLEST = {"bfloat16": "1/512", "float16": "1/4096"}
"""2^-9 and 2^-12: half the distance to the next number, for numbers just below a power of two."""

WEIGHTS = ""
MAX_TENSORS = 4
"""Copies that are followed in addition to the weights."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """The weights, or one copy with its name.

    Attributes:
        readings: Readings in a row above LOST.
        clean: Readings in a row below LOST since then.
        first: Step of the first of these readings.
    """

    copy: str
    readings: int = 0
    clean: int = 0
    first: int = -1
    share: float = 0.0
    tensor: str = ""
    dtype: str = ""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    masters: bool = False
    about: str = ""
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
    half = [at for at, tensor in enumerate(rows.schema.tensors) if tensor.dtype in HALF]
    if not half:
        return state
    lost = np.ascontiguousarray(rows.stat("update.lost")[half])
    read = measured(lost) & np.isfinite(lost)
    if not read.any():
        return state
    copies, numel = _copies(rows.schema, half), rows.numel[half].astype(np.float64)
    for at in np.flatnonzero(read.any(axis=0)).tolist():
        for copy in dict.fromkeys(copies):
            of_it = read[:, at] & np.array([each == copy for each in copies])
            if not of_it.any() or (copy == WEIGHTS and state.masters):
                continue
            shares = np.where(of_it, lost[:, at] * numel, 0.0)
            tensor = rows.schema.tensors[half[int(shares.argmax())]]
            share = float(shares.sum() / max(1.0, float(numel[of_it].sum())))
            state = _read(state, Part(copy, 1, 0, int(rows.steps[at]), share, tensor.name, tensor.dtype))
    return state


def _copies(schema: Schema, half: list[int]) -> list[str]:
    """Returns for each tensor the name of its copy, such as 'ema' in 'ema.fc.weight'.

    Weights, which belong to no copy, have WEIGHTS.
    """
    names = {tensor.name for tensor in schema.tensors}
    split = (schema.tensors[at].name.partition(".") for at in half)
    return [first if rest in names else WEIGHTS for first, _, rest in split]


def _read(state: State, reading: Part) -> State:
    """Adds one reading of one part; the reading's `first` is its step."""
    known = next((each for each in state.parts if each.copy == reading.copy), None)
    if known is None and len(state.parts) > MAX_TENSORS:
        return state
    step, others = reading.first, tuple(each for each in state.parts if each.copy != reading.copy)
    held = known or Part(reading.copy)
    told = state.opened.active and state.about == reading.copy
    if reading.share < LOST:
        clean = held.clean + 1
        over = clean >= CLEAN
        part = replace(held, clean=clean, readings=held.readings if told and not over else 0)
        opened = state.opened.over() if told and over else state.opened
        return replace(state, opened=opened, parts=(*others, part))
    first = held.first if held.readings else step
    part = replace(reading, readings=min(held.readings + 1, READINGS), first=first)
    state = replace(state, parts=(*others, part))
    if not told and (state.opened.active or part.readings < READINGS or step - first < SPAN):
        return state
    return replace(state, opened=state.opened.at(first, step), about=reading.copy)


def _conclude(state: State) -> Finding:
    part = next(each for each in state.parts if each.copy == state.about)
    copy = f"the copy {part.copy}" if part.copy else ""
    subject = copy or "the weights"
    smallest = SMALLEST.get(part.dtype, "1/512")
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"{wording.percent(part.share)} of the updates of {subject} are rounded away",
        cause=f"{wording.percent(part.share)} of the elements of {subject} that should change stay as they are, most in"
        f" {part.tensor}: in {part.dtype} a change of less than {smallest} of a number is rounded away, and"
        f" {'it hardly follows the weights' if copy else 'the weights hardly follow their gradients'}.",
        fix=_fix(part),
        tensor=part.tensor,
        module=module_of(part.tensor),
        evidence={"lost_share": round(part.share, 4), "dtype": part.dtype, "copy": part.copy or None},
        **lifecycle_fields(state.opened),
    )


def _fix(part: Part) -> str:
    if part.copy:
        return (
            f"Keep {part.copy} in float32: copy.deepcopy(model).float(), updated with weight.float(). An average with a"
            f" decay of 0.999 changes by a thousandth of the difference, which {part.dtype} cannot hold; begin it"
            " anew from the present weights."
        )
    return (
        f"Keep the weights in float32 (model.float()) and let torch.autocast(device, dtype=torch.{part.dtype}) do"
        " the forward pass. Where memory is short, an optimizer with float32 master weights, Kahan summation or"
        " stochastic rounding. A larger learning rate only hides it."
    )


VERDICT = Verdict(
    id="lost-updates",
    severity="ticket",
    title="Updates are lost to rounding",
    question="Are updates of weights or copies in half precision rounded away?",
    columns=("update.lost",),
    events=("weights.census",),
    state=State,
    judge=judge,
    explains=("stagnation",),
)
