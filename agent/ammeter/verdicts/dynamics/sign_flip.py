"""sign-flip: the gradient reverses at each step, so that each step undoes the previous one."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict, module_of
from ammeter.verdicts.framework.learning_rates import MAX_STEPS_SINCE_JUMP, Rates, stating
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.readings import Readings
from ammeter.wire.columns import Floats, View
from ammeter.wire.frames import Event, Hello

Doubles = npt.NDArray[np.float64]

FLIP_COSINE = 0.25
"""Distance of a cosine below zero that indicates a flip: half of 0.5. If the usual value is below zero, the distance
counts from there. Two steps that undo each other have gradients g1 - g0 and g2 - g1, whose cosine is -0.5 for noise of
any size and kind. In 48 trainings of two networks it was -0.44 to -0.52, with a scatter of single readings of 0.16 to
0.34, after values of 0.1 to 0.4 with a scatter of 0.2 to 0.5."""

MIN_SUM = 6.0
"""Sum of the cosines' distances beyond that bound, never below zero, that opens the verdict: Page's test for a change
of the mean (Page 1954, Continuous Inspection Schemes). A flip adds 0.25 per reading and needs about 24 readings. With a
mean of zero and a scatter of 0.4, noise reaches the sum in one of exp(2 * 6 * 0.25 / 0.4**2), about 1e8, readings. 342
healthy trainings in mini-batches, 140,000 readings, reached 2.3, except six with a learning rate that was too high."""

MIN_READINGS = 32
"""Minimum readings for a decision, and between two decisions about a run that learns."""

REFERENCE_READINGS = 32
"""Readings whose mean is the usual value. A run that alternated from its start has no reference. With all data in every
batch there is no noise, and at the limit of a stable learning rate gradients reverse for some time (Cohen et al. 2021,
Gradient Descent Typically Occurs at the Edge of Stability): of 96 trainings at that limit, the verdict reports 17,
those in which the loss also stood still."""

MIN_FALL_ERRORS = 2.0
"""Fall of the median loss, in standard errors, that shows learning despite flips."""

REFERENCE_LOSSES = 16
"""Losses at the last readings before, which are compared with the losses since."""

MIN_LOSSES = 4
"""Minimum number of losses for a comparison: a run may log none."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    readings: bytes = b""
    """The last REFERENCE_READINGS cosines, as float32."""
    losses: bytes = b""
    """The last REFERENCE_LOSSES losses at a reading, as float32."""
    excess: float = 0.0
    """The sum of Page's test. The fields below are valid while it is not zero."""
    first: int = -1
    count: int = 0
    total: float = 0.0
    """`first`: step at which the sum became positive. `count`, `total`: number of readings since, and sum of their
    cosines."""
    usual: float = math.nan
    """Mean of the earlier readings; NaN if there were too few."""
    readings_since: int = 0
    earlier: bytes = b""
    since: bytes = b""
    """`readings_since`: readings since the start or the last decision. `earlier`: the losses before that time. `since`:
    the losses from then on, at most MIN_READINGS."""
    loss_before: float = math.nan
    loss: float = math.nan
    tensor: str = ""
    cosine: float = 0.0
    """Values for the finding at opening: median losses, tensor, and mean of the cosines."""
    column: str = ""
    """The name of the loss, if the run has several."""
    rates: Rates = Rates()
    ranks: int = 0
    """Number of ranks; 0 if not known."""
    dtype: str = ""
    """The dtype of autocast with gradients recorded."""


@partial(stating, conclude=lambda state: _conclude(state))
def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("hello", *VERDICT.events):
        if isinstance(part, View):
            state = _rows(state, part)
        elif isinstance(part, Hello):
            state = replace(state, ranks=part.world_size)
        elif isinstance(part, Event) and part.data.get("grad") and not state.dtype:
            state = replace(state, dtype=str(part.data.get("dtype", ""))[:20])
    return state, changed(_conclude, before, state)


def _rows(state: State, rows: View) -> State:
    cosines, losses = rows.scalar("grad_agreement"), rows.loss()
    read = np.flatnonzero(np.isfinite(cosines))
    start = 0
    while start < len(read):
        calm = 0 if state.excess or state.opened.active else _calm(cosines[read[start:]])
        if calm:
            state = _with_readings(state, cosines[read[start : start + calm]], losses[read[start : start + calm]])
            start += calm
            continue
        at = int(read[start])
        step, cosine, loss = int(rows.steps[at]), float(cosines[at]), float(losses[at])
        state = _with_readings(_summed(state, step, cosine, loss), cosines[at : at + 1], losses[at : at + 1])
        if state.opened.active:
            state = replace(state, opened=state.opened.until(step) if state.excess else state.opened.over())
        elif state.excess >= MIN_SUM and state.readings_since >= MIN_READINGS and math.isfinite(state.usual):
            state = _decided(state, step, rows, at)
        start += 1
    return state


def _calm(cosines: Floats) -> int:
    """Returns the number of leading readings that cannot start a sum, whatever the usual value."""
    beyond = np.flatnonzero(cosines < -FLIP_COSINE)
    return int(beyond[0]) if beyond.size else len(cosines)


def _summed(state: State, step: int, cosine: float, loss: float) -> State:
    """Adds one cosine's distance beyond the bound to the sum."""
    usual = state.usual if state.excess else _usual(state.readings)
    bound = (usual if usual < 0 else 0.0) - FLIP_COSINE
    excess = min(MIN_SUM, state.excess + bound - cosine)
    if excess <= 0:
        return replace(state, excess=0.0) if state.excess else state
    if not state.excess:
        started = replace(state, first=step, count=0, total=0.0, usual=usual, readings_since=0)
        state = replace(started, earlier=state.losses, since=b"")
    return replace(
        state,
        excess=excess,
        count=state.count + 1,
        total=state.total + cosine,
        readings_since=state.readings_since + 1,
        since=_with(state.since, loss, MIN_READINGS),
    )


def _usual(readings: bytes) -> float:
    return float(np.frombuffer(readings, np.float32).mean()) if len(readings) == 4 * REFERENCE_READINGS else math.nan


def _with_readings(state: State, cosines: Floats, losses: Floats) -> State:
    readings = (state.readings + cosines[-REFERENCE_READINGS:].tobytes())[-4 * REFERENCE_READINGS :]
    finite = losses[np.isfinite(losses)]
    return replace(
        state, readings=readings, losses=(state.losses + finite[-REFERENCE_LOSSES:].tobytes())[-4 * REFERENCE_LOSSES :]
    )


def _with(numbers: bytes, number: float, most: int) -> bytes:
    """Appends a number, if it is finite, and keeps the last `most` numbers."""
    return (numbers + np.float32(number).tobytes())[-4 * most :] if math.isfinite(number) else numbers


def _decided(state: State, step: int, rows: View, at: int) -> State:
    """Opens the verdict, unless the loss falls despite the flips.

    Harmful flips prevent the loss from falling.
    """
    before, now = (np.frombuffer(losses, np.float32).astype(np.float64) for losses in (state.earlier, state.since))
    if _falls(before, now):
        return replace(state, readings_since=0, earlier=state.since, since=b"")
    return replace(
        state,
        opened=state.opened.at(state.first, step),
        loss_before=_median(before),
        loss=_median(now),
        tensor=_most_reversed(rows, at),
        cosine=state.total / state.count,
        column=rows.loss_at(at),
    )


def _falls(before: Doubles, now: Doubles) -> bool:
    """Whether the losses in `now` are lower than those in `before`, beyond their noise.

    Single batches differ, so medians are compared.
    """
    if min(len(before), len(now)) < MIN_LOSSES:
        return False
    return _median(before) - _median(now) > MIN_FALL_ERRORS * math.hypot(_error(before), _error(now))


def _median(numbers: Doubles) -> float:
    return float(np.median(numbers)) if len(numbers) else math.nan


def _error(numbers: Doubles) -> float:
    """Standard error of the median, from the median absolute deviation.

    A standard deviation is 1.48 times the latter.
    """
    return float(1.4826 * np.median(np.abs(numbers - np.median(numbers))) * math.sqrt(math.pi / 2 / len(numbers)))


def _most_reversed(rows: View, at: int) -> str:
    """Returns the tensor with the largest share of the reversal; '' without readings per tensor."""
    cosines: Floats = rows.stat("grad.agreement")[:, at]
    norms = rows.stat("grad.norm")[:, at].astype(np.float64)
    weight = np.where(np.isfinite(norms), norms**2, 0.0)
    back = np.where(np.isfinite(cosines), cosines * (weight if weight.any() else 1.0), 0.0)
    return rows.schema.tensors[int(back.argmin())].name if back.size and back.min() < 0 else ""


def _conclude(state: State) -> Finding:
    module = module_of(state.tensor)
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title="Steps undo each other: the gradient reverses from step to step",
        cause=_cause(state),
        fix=f"{_first_remedy(state)}{_in_float32(state, module)}",
        tensor=state.tensor or None,
        module=module,
        evidence=wording.finite(_evidence(state)),
        **lifecycle_fields(state.opened),
    )


def _cause(state: State) -> str:
    known = math.isfinite(state.loss) and math.isfinite(state.loss_before)
    which = wording.of_loss(state.column)
    loss = (
        f" The loss{which} no longer falls beyond its noise: its median was {state.loss_before:.4g} before and is"
        f" {state.loss:.4g} since."
        if known
        else ""
    )
    most = f", most of all in {state.tensor}" if state.tensor else ""
    return (
        f"{wording.sentence(state.opened.since)} the gradient points against that of the previous step{most}, so a step"
        f" undoes much of the one before: their cosine is {state.cosine:.2f} on average and was {state.usual:.2f}"
        f" earlier (1 is the same direction, -1 the opposite).{loss}"
    )


def _first_remedy(state: State) -> str:
    """Begins with the learning rate if it changed shortly before, else with what else the program changed."""
    changed = state.rates.stated.step
    if changed >= state.opened.first - MAX_STEPS_SINCE_JUMP:
        return f"Halve the learning rate, which changed at step {changed}."
    return (
        f"Undo what the program changes at step {state.opened.first}, such as {_suspects(state)}. If it changes"
        " nothing there, halve the learning rate."
    )


def _suspects(state: State) -> str:
    """Returns what may reverse gradients in such a run."""
    if state.ranks == 1:
        return "a term of the loss, or a hook on the gradients"
    return "a term of the loss, a hook on the gradients, their compression or their reduction over ranks"


def _evidence(state: State) -> dict[str, Any]:
    return {
        "cosine": round(state.cosine, 3),
        "usual_cosine": round(state.usual, 3),
        "loss": state.loss,
        "loss_before": state.loss_before,
    }


def _in_float32(state: State, module: str | None) -> str:
    if not module or state.dtype not in ("float16", "bfloat16"):
        return ""
    return (
        f" If neither helps, run {module} in float32 for a few hundred steps, under torch.autocast(device_type,"
        f" enabled=False): if the reversals stop, {state.dtype} is too coarse for that layer."
    )


VERDICT = Verdict(
    id="sign-flip",
    severity="ticket",
    title="Gradients reverse from step to step",
    question="Do gradients point against those of the previous step, unlike earlier in the run?",
    columns=("grad_agreement", "loss", "loss_backward", "grad.agreement", "grad.norm", "optimizer_lr"),
    events=("autocast.entered",),
    needs=(Readings("grad_agreement", REFERENCE_READINGS + MIN_READINGS, within=20_000),),
    state=State,
    judge=judge,
)
