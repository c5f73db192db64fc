"""stagnation: steps are applied, but loss and weights have not changed since the run began.

A constant loss alone is no evidence: it may be at its minimum, or noise, or the game of two networks. So the verdict
also checks the updates of the weights, and only in a run that begins; a resumed run may be near the end of its
schedule, unless the program undoes its updates. In most cases another verdict reports the reason, and this one is its
consequence.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.readings import Readings
from ammeter.wire.columns import View
from ammeter.wire.frames import Event

MAX_RATIO = 1e-5
"""Ratio of update norm to weight norm below which the weights are constant. About 1e-3 is usual (Karpathy, A Recipe for
Training Neural Networks, and cs231n); AdamW at a learning rate of 1e-6, as in cautious fine-tuning, causes 5e-5 for
weights of 0.02."""

MIN_STEPS = 200
"""Minimum number of applied steps. The loss of any run that learns has changed by then, and only a warm-up longer than
20,000 steps would still be below MAX_RATIO."""

WARMUP_STEPS = 64
"""Applied steps after which the last reading must have been made: the first ones of a warm-up are tiny."""

MIN_READING_STEPS = 16
"""Applied steps after which readings count. One before MIN_STEPS counts as the ratio that a linear warm-up would have
reached by then."""

MIN_READINGS = 3
"""Consecutive readings that must agree, for opening, or disagree, for closing."""

MEDIAN_LOSSES = 32
"""Number of losses whose median is the initial, or the present, loss."""

MIN_FALL_SHARE = 0.02
"""Minimum fall of the loss, relative to the first loss, that shows learning. If the losses scatter more widely, as
those of eight images do, it is their standard deviation: three times the chance difference of two medians of 32."""

MIN_LOSS = 1e-3
"""A loss below which nothing remains to be learnt."""

MIN_USUAL_RATE = 1e-6
"""Learning rate below which it is named as the cause: that of cautious fine-tuning is as large."""

UNDONE = "weights.undone"

MIN_NORM = 1e-3
"""Norm of all gradients below which they are the reason, not the learning rate: usual norms are 0.01 to 100."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    past: bool = False
    """Whether the question is settled: the run has learnt something, or goes on and keeps its updates."""
    counted: bool = False
    """Whether the first census of the optimizers was processed."""
    applied: int = 0
    reference_step: int = -1
    """Step at which the first MEDIAN_LOSSES losses were complete: the reference for a later fall."""
    losses: bytes = b""
    """The last MEDIAN_LOSSES losses of applied steps, as float32."""
    first: float = math.nan
    ratios: tuple[float, ...] = ()
    norm: float = math.nan
    loss: float = math.nan
    ratio: float = math.nan
    norm_at_opening: float = math.nan
    """`loss`, `ratio`, `norm_at_opening`: present loss, largest ratio, and gradient norm at opening."""
    steps: int = 0
    column: str = ""
    """The name of the loss, if the run has several."""
    projected: tuple[float, ...] = ()
    """The ratios, each multiplied as by a linear warm-up until MIN_STEPS."""
    read_at: int = 0
    """Value of `applied` at the last reading."""
    undone: bool = False
    """Whether the program undoes the updates: before the next step, the weights are what they were."""
    undone_at_opening: bool = False
    goes_on: bool = False
    """Whether the run had an earlier attempt, or steps before watch()."""
    rate: float = math.nan
    """The last learning rate that was read, and the one at opening."""
    rate_at_opening: float = math.nan


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts(*VERDICT.events):
        if isinstance(part, View):
            state = _rows(state, part)
        elif isinstance(part, Event):
            state = _with_event(state, part)
    return state, changed(_conclude, before, state)


def _with_event(state: State, event: Event) -> State:
    """Processes an event.

    The first census shows the optimizers before this process's first step: a state in it comes from earlier steps.
    """
    if event.name == UNDONE:
        return replace(state, undone=bool(event.data.get("undone")))
    if event.name != "weights.census":
        return replace(state, goes_on=True) if state.applied < WARMUP_STEPS else state
    if state.counted:
        return state
    return replace(state, counted=True, goes_on=state.goes_on or bool(event.data.get("state")))


def _rows(state: State, rows: View) -> State:
    if state.past:
        return state
    applied = rows.scalar("applied") > 0
    losses, ratios, rates = rows.loss(), rows.scalar("update_ratio"), rows.scalar("optimizer_lr")
    counted = np.flatnonzero(applied & np.isfinite(losses))
    if not counted.size:
        return state
    read = set(np.flatnonzero(np.isfinite(ratios)).tolist())
    start = 0
    while start < counted.size and not state.past:
        end = start + _rows_to_reading(state, counted[start:].tolist(), read)
        at = int(counted[end - 1])
        more = losses[counted[start:end]]
        state = replace(
            state, applied=state.applied + len(more), losses=(state.losses + more.tobytes())[-4 * MEDIAN_LOSSES :]
        )
        if state.applied == MEDIAN_LOSSES:
            state = replace(state, first=_median(state.losses), reference_step=int(rows.steps[at]))
        if len(known := np.flatnonzero(np.isfinite(rates[: at + 1]))):
            state = replace(state, rate=float(rates[known[-1]]))
        is_read = at in read and state.applied > MIN_READING_STEPS
        if is_read:
            state = _with_reading(state, float(ratios[at]), float(rows.scalar("grad_norm")[at]))
        if is_read or state.applied == MIN_STEPS:
            was_active = state.opened.active
            state = _decided(state, int(rows.steps[at]))
            if state.opened.active and not was_active:
                state = replace(state, column=rows.loss_at(at))
        start = end
    return state


def _rows_to_reading(state: State, counted: list[int], read: set[int]) -> int:
    """Returns the number of rows up to the next one that matters.

    That row is the end of the initial losses, one with a reading, or the first on which the verdict may be reached.
    """
    count = next((number for number, at in enumerate(counted, 1) if at in read), len(counted))
    ends = (end - state.applied for end in (MEDIAN_LOSSES, MIN_STEPS) if state.applied < end)
    return min(count, next(ends, count))


def _with_reading(state: State, ratio: float, norm: float) -> State:
    return replace(
        state,
        ratios=(*state.ratios, ratio)[-MIN_READINGS:],
        projected=(*state.projected, ratio * max(1.0, MIN_STEPS / state.applied))[-MIN_READINGS:],
        norm=norm if math.isfinite(norm) else state.norm,
        read_at=state.applied,
    )


def _decided(state: State, step: int) -> State:
    ratios = state.ratios
    if state.opened.active:
        is_constant = state.undone or min(ratios) < MAX_RATIO
        return replace(state, opened=state.opened.until(step) if is_constant else state.opened.over())
    if state.applied < MIN_STEPS:
        return state
    loss = _median(state.losses)
    is_settled = state.goes_on and not state.undone
    if (
        is_settled
        or loss <= MIN_LOSS
        or state.first - loss >= max(MIN_FALL_SHARE * state.first, _scatter(state.losses))
    ):
        return replace(state, past=True, losses=b"", ratios=(), projected=())
    if len(ratios) < MIN_READINGS or state.read_at <= WARMUP_STEPS:
        return state
    if max(state.projected) >= MAX_RATIO and not state.undone:
        return state
    return replace(
        state,
        opened=state.opened.at(state.reference_step, step),
        loss=loss,
        ratio=max(ratios),
        norm_at_opening=state.norm,
        steps=state.applied,
        undone_at_opening=state.undone,
        rate_at_opening=state.rate,
    )


def _median(losses: bytes) -> float:
    return float(np.median(np.frombuffer(losses, np.float32)))


def _scatter(losses: bytes) -> float:
    return float(np.frombuffer(losses, np.float32).std())


def _conclude(state: State) -> Finding:
    known = math.isfinite(state.norm_at_opening)
    norm = f" The gradients have a norm of {state.norm_at_opening:.2g}." if known else ""
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=_title(state),
        cause=f"{_updates(state)} The median of {MEDIAN_LOSSES} losses{wording.of_loss(state.column)} is"
        f" {state.loss:.4g} after {state.steps} applied steps; at the beginning it was {state.first:.4g}.{norm}",
        fix=_fix(state),
        evidence=wording.finite(_evidence(state)),
        **lifecycle_fields(state.opened),
    )


def _title(state: State) -> str:
    if state.undone_at_opening:
        return "The program undoes each update: the weights stay what they were"
    if _is_rate_small(state):
        return f"The model does not learn: a learning rate of {state.rate_at_opening:.3g} hardly changes the weights"
    return "The model does not learn: steps hardly change the weights"


def _is_rate_small(state: State) -> bool:
    return state.rate_at_opening < MIN_USUAL_RATE


def _updates(state: State) -> str:
    if state.undone_at_opening:
        return (
            f"Steps are applied and change the weights by {state.ratio:.1g} of their norm, but before the next step the"
            " weights are again what they were before the last one: the program undoes each update."
        )
    rate = f" The learning rate was {state.rate_at_opening:.3g} then." if math.isfinite(state.rate_at_opening) else ""
    return (
        f"Steps are applied but hardly change the weights: a step changes them by {state.ratio:.2g} of their"
        f" norm, where about 0.001 is usual.{rate}"
    )


def _evidence(state: State) -> dict[str, Any]:
    return {
        "applied_steps": state.steps,
        "loss": state.loss,
        "first_loss": state.first,
        "update_ratio": state.ratio,
        "grad_norm": state.norm_at_opening,
        "updates_undone": state.undone_at_opening,
    }


def _fix(state: State) -> str:
    if state.undone_at_opening:
        return (
            "Find what writes the old weights back between two steps: load_state_dict() or copy_() from a saved, an"
            " averaged or a master copy; an average that is swapped in for the evaluation; a broadcast from a rank that"
            " does not train."
        )
    known = math.isfinite(state.rate_at_opening)
    rate = (
        f"{'' if known else 'print optimizer.param_groups[0][' + repr('lr') + '] in the loop; '}a schedule that"
        " multiplies it twice, counts its warm-up in the wrong unit or was never stepped leaves it too small"
    )
    if state.norm_at_opening < MIN_NORM:
        return (
            "Find out why the gradients are so small: a loss that is divided twice (by the scale, by the number of"
            " micro-batches or of tokens), a clip of scaled gradients, or a mask that excludes nearly everything. If"
            f" they are meant to be so small, check the learning rate: {rate}."
        )
    times = float(f"{0.001 / max(state.ratio, 1e-12):.1g}")
    unread = "" if math.isfinite(state.norm_at_opening) else " The gradients were not read."
    if known and _is_rate_small(state):
        return (
            f"Raise the learning rate, about {times:,.0f}-fold by the size of the updates.{unread}"
            f" {wording.sentence(rate)}."
        )
    return (
        f"Check the learning rate: {rate}. About {times:,.0f} times as much would be usual.{unread} If it is right,"
        " check that the optimizer was created from the trained weights, after model.to(...), and not from a copy."
    )


VERDICT = Verdict(
    id="stagnation",
    severity="ticket",
    title="No progress from the start",
    question="Do applied steps change neither the loss nor the weights, since the run began?",
    columns=("applied", "loss", "loss_backward", "update_ratio", "grad_norm", "optimizer_lr"),
    events=(UNDONE, "weights.census", "checkpoint.restored", "optimizer.restored", "scaler.restored"),
    needs=(Readings("applied", MIN_STEPS), Readings("update_ratio", MIN_READINGS, within=500)),
    state=State,
    judge=judge,
)
