"""sign-flip: gradients turn round from step to step, so that each step takes back what the one before it did."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.block import Floats, View
from ammeter.verdicts import words
from ammeter.verdicts.finding import Finding, Verdict, module_of
from ammeter.verdicts.opened import Opened, changed, found

AGAINST = -0.2
"""Cosine of two neighbouring gradients below which one points against the other. Of small batches it is noise around
zero, or a little more: single readings reach -0.9."""

ENOUGH = 32
"""Such readings in a row that settle it. Of 119 small trainings in mini-batches (three networks, SGD with and without
momentum, Adam, learning rates from small to barely bearable, 62,000 steps) none came to 16 from where it was otherwise.
With all data in every batch there is no noise, and at the edge of what a learning rate bears gradients do so for a time
(Cohen et al. 2021, Gradient Descent Typically Occurs at the Edge of Stability): 8 of 72 had 16, two had 32."""

BEFORE = 32
"""Readings whose median says how it was before; below zero the run has always gone back and forth."""

LEARNT = 0.05
"""Share of all it has learnt by which the loss may have fallen meanwhile: a run that learns so is well. Then it is
asked again after as many readings more: gradients that turn round keep a loss from falling any further."""

LOSSES = 16
"""Losses at the last readings whose median is the loss before, or now: single batches differ."""

CALM = 8
"""Readings in a row that do not, after which it is over."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Opened = Opened()
    readings: bytes = b""
    """The last BEFORE cosines, float32."""
    losses: bytes = b""
    """The last LOSSES losses at a reading, float32; and the first one of the run."""
    first_loss: float = math.nan
    flips: int = 0
    calm: int = 0
    first: int = -1
    """Readings in a row that point against the one before, and the step of the first; since it is told, those that do
    not."""
    total: float = 0.0
    """Sum of their cosines, and of the readings before: the median."""
    usual: float = math.nan
    loss_before: float = math.nan
    loss: float = math.nan
    tensor: str = ""
    cosine: float = 0.0
    """Mean of the cosines when it was reached."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    after = _rows(state, view) if len(view) else state
    return after, changed(_conclude, state, after)


def _rows(state: State, rows: View) -> State:
    cosines, losses = rows.scalar("grad_agreement"), rows.scalar("loss")
    for at in np.flatnonzero(np.isfinite(cosines)).tolist():
        cosine, loss = float(cosines[at]), float(losses[at])
        state = _calm(state) if cosine >= AGAINST else _flipped(state, rows, at, cosine)
        state = _with_reading(state, cosine, loss)
        if state.flips >= ENOUGH and not state.opened.active:
            state = _decided(state, int(rows.steps[at]), rows, at)
    return state


def _calm(state: State) -> State:
    calm = state.calm + 1
    if state.opened.active and calm < CALM:
        return replace(state, calm=calm)
    return replace(state, calm=calm, flips=0, opened=state.opened.over())


def _flipped(state: State, rows: View, at: int, cosine: float) -> State:
    step = int(rows.steps[at])
    if state.opened.active:
        return replace(state, calm=0, opened=state.opened.until(step))
    if state.flips:
        return replace(state, flips=state.flips + 1, total=state.total + cosine)
    known = len(state.readings) == 4 * BEFORE
    usual = _median(state.readings) if known else math.nan
    return replace(state, flips=1, calm=0, first=step, total=cosine, usual=usual, loss_before=_median(state.losses))


def _with_reading(state: State, cosine: float, loss: float) -> State:
    readings = (state.readings + np.float32(cosine).tobytes())[-4 * BEFORE :]
    if not math.isfinite(loss):
        return replace(state, readings=readings)
    losses = (state.losses + np.float32(loss).tobytes())[-4 * LOSSES :]
    first_loss = state.first_loss if math.isfinite(state.first_loss) else loss
    return replace(state, readings=readings, losses=losses, first_loss=first_loss)


def _decided(state: State, step: int, rows: View, at: int) -> State:
    """Once there are enough: whether it was otherwise before, and the loss did not fall."""
    loss = _median(state.losses)
    learnt = max(0.0, state.first_loss - state.loss_before)
    learns = loss < state.loss_before - LEARNT * learnt
    if learns:
        return replace(state, flips=1, total=state.total / state.flips, loss_before=loss)
    if not state.usual >= 0:
        return state
    return replace(
        state,
        opened=state.opened.at(state.first, step),
        loss=loss,
        tensor=_most(rows, at),
        cosine=state.total / state.flips,
    )


def _median(numbers: bytes) -> float:
    return float(np.median(np.frombuffer(numbers, np.float32))) if numbers else math.nan


def _most(rows: View, at: int) -> str:
    """The tensor with most of what points back; '' where none was read by itself."""
    cosines: Floats = rows.stat("grad.agreement")[:, at]
    norms = rows.stat("grad.norm")[:, at].astype(np.float64)
    weight = np.where(np.isfinite(norms), norms**2, 0.0)
    back = np.where(np.isfinite(cosines), cosines * (weight if weight.any() else 1.0), 0.0)
    return rows.schema.tensors[int(back.argmin())].name if back.size and back.min() < 0 else ""


def _conclude(state: State) -> Finding:
    known = math.isfinite(state.loss) and math.isfinite(state.loss_before)
    loss = f" The loss was {state.loss_before:.4g} before and is {state.loss:.4g}." if known else ""
    most = f", most of all in {state.tensor}" if state.tensor else ""
    module = module_of(state.tensor)
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title="The gradients turn round from step to step",
        cause=f"Since step {state.opened.first} each gradient points against the one of the step before{most}: their"
        f" cosine is {state.cosine:.2f} where it was {state.usual:.2f} (1 is the same direction, -1 the opposite). So"
        f" one step takes back what the last one did.{loss}",
        fix=f"Look at what changed at step {state.opened.first}: the learning rate, a term of the loss, gradient"
        " compression, the way gradients are added up over ranks. If nothing did, the learning rate has become too"
        f" large for this loss: go on with half of it.{_in_float32(module)}",
        tensor=state.tensor or None,
        module=module,
        evidence=words.finite(
            {
                "cosine": round(state.cosine, 3),
                "usual_cosine": round(state.usual, 3),
                "loss": state.loss,
                "loss_before": state.loss_before,
            }
        ),
        **found(state.opened),
    )


def _in_float32(module: str | None) -> str:
    if not module:
        return ""
    return (
        f" If that does not help, run {module} in float32 for a few hundred steps (torch.autocast(enabled=False) around"
        " it): when it then stops, the precision of that layer is to blame."
    )


VERDICT = Verdict(
    id="sign-flip",
    severity="ticket",
    title="Gradients turn round from step to step",
    question="Do gradients point against those of the step before, as they did not earlier in the run?",
    columns=("grad_agreement", "loss", "grad.agreement", "grad.norm"),
    events=(),
    state=State,
    judge=judge,
)
