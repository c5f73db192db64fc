"""gradient-underflow: most of the gradient is zero or subnormal in float16, so updates are lost."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict, module_of
from ammeter.verdicts.framework.float16 import FLOAT16_MAX, sampled_rows
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.readings import Readings, in_float16
from ammeter.verdicts.loss_scale.underflow_shares import MIN_LOST_SHARE, Doubles, is_structural, shares_of_ranks
from ammeter.wire.columns import View, measured
from ammeter.wire.frames import Event, Hello

MIN_READINGS = 3
"""Full readings in a row that must agree, for opening and for closing: a single one may come from an odd batch."""

MIN_LOSS_SHARE = 1e-3
"""Share of the run's largest loss below which gradients are not judged. They have shrunk with the loss, those of a
cross-entropy by the same ten bits, and nothing remains to be learnt from the lost elements. A memorized batch reaches
this share within a few dozen steps."""

MAX_LEARNED_FALL = 1e4
"""Factor by which learning reduces the loss from one step to the next at most. A larger fall is another weight of the
loss: its gradients shrink, although nothing was learnt."""

RESERVE_BITS = 3
"""Powers of two below 65504 that a recommended scale leaves free. They are for gradients larger than those measured."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    half: bool = False
    readings: int = 0
    """Full readings in a row that showed underflow, and those since that did not."""
    clean: int = 0
    first: int = -1
    scale: float = 1.0
    scaled: bool = False
    lowest: float = 0.0
    highest: float = 0.0
    share: float = 0.0
    zeros: float = 0.0
    peak: float = 0.0
    """Largest scaled |gradient| in the readings that showed underflow."""
    tensor: str = ""
    loss: float = 0.0
    """Largest |loss| since the loss has its present weight."""
    last_loss: float = 0.0
    normal_scale: float = -1.0
    """Scale of the last full reading if it showed no underflow, else -1. `normal_loss` is its |loss|, NaN if unread."""
    normal_loss: float = math.nan
    ranks: int = 1
    averaged: bool = False
    """Whether the last reading was of gradients that the ranks had averaged."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("hello", "autocast.entered"):
        if isinstance(part, View):
            state = _rows(state, part)
        elif isinstance(part, Hello):
            state = replace(state, ranks=part.world_size)
        elif isinstance(part, Event) and part.data.get("dtype") == "float16" and part.data.get("grad"):
            state = replace(state, half=True)
    return state, changed(_conclude, before, state)


def _rows(state: State, rows: View) -> State:
    state = _scales(state, rows)
    if not state.half and all(tensor.dtype != "float16" for tensor in rows.schema.tensors):
        return state
    state, learning = _learning(state, rows)
    sampled = sampled_rows(rows)
    sampled = sampled[learning[sampled]]
    if not sampled.size:
        return state
    shares, zeros, worst, averaged = shares_of_ranks(rows, sampled, state.ranks)
    losses = np.abs(rows.loss())
    if state.readings == 0 and not state.opened.active and not (shares >= MIN_LOST_SHARE).any():
        last = int(sampled[-1])
        return replace(state, normal_scale=_scale(rows, last), normal_loss=float(losses[last]))
    peaks = rows.scalar("grad_absmax")
    state = replace(state, averaged=averaged)
    for column, at in enumerate(sampled.tolist()):
        reading = Reading(
            step=int(rows.steps[at]),
            scale=_scale(rows, at),
            share=float(shares[column]),
            zeros=float(zeros[column]),
            absmax=float(peaks[at]),
            tensor=rows.schema.tensors[int(worst[column])].name,
            loss=float(losses[at]),
        )
        state = _read(state, reading)
    return state


def _scale(rows: View, at: int) -> float:
    scale = float(rows.scalar("scale")[at])
    return scale if scale > 0 else 1.0


def _learning(state: State, rows: View) -> tuple[State, npt.NDArray[np.bool_]]:
    """Selects the rows in which the loss is still high enough to learn from.

    Rows without a loss are included.
    """
    if len(rows) == 1:
        return _learning_in_row(state, abs(float(rows.loss()[0])), rows)
    losses = np.abs(rows.loss()).astype(np.float64)
    finite = np.isfinite(losses)
    highest, last = _highest(state, losses, np.flatnonzero(finite))
    learning = ~measured(rows.loss()) | (finite & (losses > MIN_LOSS_SHARE * highest))
    return replace(state, loss=float(highest[-1]), last_loss=last) if highest.size else state, learning


def _learning_in_row(state: State, loss: float, rows: View) -> tuple[State, npt.NDArray[np.bool_]]:
    """Gives the result of _learning() for a single row with Python's numbers, which take a fraction of the time."""
    if not math.isfinite(loss):
        return state, ~measured(rows.loss())
    falls = loss > 0 and loss * MAX_LEARNED_FALL < state.last_loss
    highest = loss if falls else max(state.loss, loss)
    return replace(state, loss=highest, last_loss=loss), np.array([loss > MIN_LOSS_SHARE * highest])


def _highest(state: State, losses: Doubles, finite: npt.NDArray[np.int_]) -> tuple[Doubles, float]:
    """Returns the largest loss of the present weight at each row, and the last finite loss."""
    known = np.zeros(losses.size)
    known[finite] = losses[finite]
    before = np.append(state.last_loss, losses[finite])
    falls = finite[(before[1:] > 0) & (before[1:] * MAX_LEARNED_FALL < before[:-1])]
    highest = np.maximum.accumulate(np.append(state.loss, known))[1:]
    for fall in falls.tolist():
        highest[fall:] = np.maximum.accumulate(known[fall:])
    return highest, float(before[-1])


class Reading(NamedTuple):
    """One full reading of all gradients.

    `absmax` is unscaled; `share` and `zeros` refer to the elements without structural zeros; `loss` is |loss|, NaN if
    it was not read.
    """

    step: int
    scale: float
    share: float
    zeros: float
    absmax: float
    tensor: str
    loss: float


def _read(state: State, reading: Reading) -> State:
    before = state.normal_scale, state.normal_loss
    if reading.zeros >= 1 and is_structural(before, (reading.scale, reading.loss)):
        return state
    if reading.share < MIN_LOST_SHARE:
        state = replace(state, normal_scale=reading.scale, normal_loss=reading.loss)
        clean = state.clean + 1
        if state.opened.active and clean < MIN_READINGS:
            return replace(state, clean=clean)
        return replace(state, readings=0, clean=0, opened=state.opened.over())
    state = replace(
        state,
        readings=state.readings + 1,
        clean=0,
        first=state.first if state.readings else reading.step,
        scale=reading.scale,
        share=reading.share,
        zeros=reading.zeros,
        peak=max(state.peak if state.readings else 0.0, reading.absmax * reading.scale),
        tensor=reading.tensor,
        normal_scale=-1.0,
    )
    if state.readings < MIN_READINGS:
        return state
    return replace(state, opened=state.opened.at(state.first, reading.step))


def _scales(state: State, rows: View) -> State:
    scales = rows.scalar("scale")
    scales = scales[scales > 0]
    if not scales.size:
        return state
    low, high = float(scales.min()), float(scales.max())
    if state.scaled and state.lowest <= low and high <= state.highest:
        return state
    lowest = min(low, state.lowest) if state.scaled else low
    return replace(state, scaled=True, lowest=lowest, highest=max(high, state.highest))


def _conclude(state: State) -> Finding:
    spare = math.log2(FLOAT16_MAX / state.peak) if state.peak > 0 else None
    constant = state.scaled and state.lowest == state.highest
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=_title(state, spare),
        cause=_cause(state, constant),
        fix=_fix(state, spare),
        tensor=state.tensor or None,
        module=module_of(state.tensor),
        evidence=_evidence(state, spare, constant),
        **lifecycle_fields(state.opened),
    )


def _title(state: State, spare: float | None) -> str:
    share = f"{wording.percent(state.share)} of the gradient underflows"
    if state.scaled and _better_scale(state, spare) is not None:
        return f"A loss scale of {wording.scale(state.scale)} is too low: {share}"
    return f"{share} in float16"


def _cause(state: State, constant: bool) -> str:
    history = f" The loss scale was {wording.scale(state.scale)} in all steps so far." if constant else ""
    at = f" at a loss scale of {wording.scale(state.scale)}" if state.scaled else " without a loss scale"
    whose = f"the elements of their average over {state.ranks} ranks" if state.averaged else "their elements"
    return (
        f"Gradients underflow in float16{at}: {wording.percent(state.share)} of {whose} are below 2^-14,"
        f" the smallest normal float16, and have lost precision: {wording.percent(state.zeros)} are zero. The largest"
        f" share is in {state.tensor}.{history}"
    )


def _evidence(state: State, spare: float | None, constant: bool) -> dict[str, Any]:
    of = "averaged_" if state.averaged else ""
    return {
        f"{of}lost_share": round(state.share, 4),
        f"{of}zero_share": round(state.zeros, 4),
        "scale": state.scale if state.scaled else None,
        "scale_never_changed": constant,
        "headroom_bits": None if spare is None else round(spare, 1),
        "suggested_scale": _better_scale(state, spare),
    }


def _fix(state: State, spare: float | None) -> str:
    better = _better_scale(state, spare)
    if better is None and spare is None:
        return (
            "Use dtype=torch.bfloat16 in autocast: no gradient is left at this scale, so the scale that would keep them"
            " cannot be computed. Check whether the loss is divided twice (by the batch, the tokens or the ranks)."
        )
    if better is None:
        return (
            "Use dtype=torch.bfloat16 in autocast, or keep the layers with the largest gradients in float32: the"
            f" largest gradient leaves {max(spare or 0.0, 0.0):.1f} bits below 65504, too few for a higher scale."
        )
    reason = (
        f"the largest gradient, {state.peak:.3g} at a scale of {state.scale:g}, becomes"
        f" {wording.figure(state.peak * better / state.scale)} there; float16 ends at 65504"
        if spare is not None
        else "no gradient was left to measure, and this is PyTorch's default"
    )
    return (
        f"Use GradScaler(init_scale=2.0**{int(math.log2(better))}, growth_interval=2000): {reason}. Or use"
        " dtype=torch.bfloat16 in autocast, which needs no scaler."
    )


def _better_scale(state: State, spare: float | None) -> float | None:
    """Returns the scale that uses the headroom minus the reserve.

    Returns None if that would not raise the scale.
    """
    if spare is None:
        return DEFAULT_SCALE if state.scale < DEFAULT_SCALE else None
    bits = math.floor(spare) - RESERVE_BITS
    return 2.0 ** (math.floor(math.log2(state.scale)) + bits) if bits > 0 else None


DEFAULT_SCALE = 65536.0
"""init_scale of torch.amp.GradScaler, for runs without a measured gradient."""

VERDICT = Verdict(
    id="gradient-underflow",
    severity="ticket",
    title="Gradients underflow",
    question="Is most of the gradient zero or subnormal in float16?",
    columns=("grad_absmax", "scale", "loss", "loss_backward", "grad.zeros", "grad.subnormals", "grad.fp16_grid"),
    events=("autocast.entered",),
    needs=(Readings("grad_absmax", MIN_READINGS, within=1000),),
    applies=in_float16,
    state=State,
    judge=judge,
    explains=("stagnation",),
)
