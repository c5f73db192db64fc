"""Title, cause and fix of a finding of diverged."""

from __future__ import annotations

import math

from ammeter.verdicts.dynamics.divergence_state import RUINOUS_STEP, State
from ammeter.verdicts.framework import wording

TARGET_STEP = 0.01
"""Ratio of update norm to weight norm that a lower learning rate should reach: ten times the usual 1e-3, so that the
suggested rate is not too low. The largest steps of a run, its first ones, are ten times those of later."""

LOWER_BY = 10.0
"""Factor for the learning rate if no update was read: the usual spacing of a search for it."""

EARLY_STEPS = 20
"""Steps at the start of a run in which a learning rate, rather than a batch, is the likely reason: a fifth of the
shortest usual warm-up."""

MAX_NEAR = 0.1
"""Share of the initial loss within which a later one is near it: twice what the median of losses without learning may
be below."""

MIN_RAISE = 1.5
"""Factor between the rate of the start and a later one from which the program has raised it."""

UNKNOWN_LIMIT = 1.0
"""Limit for clip_grad_norm_ if no norm was read: the one of most published recipes."""


def title(state: State) -> str:
    which = wording.of_loss(state.column)
    if state.kind == "drifting":
        return "Steps change the weights by a large share, and the loss rises"
    if state.kind == "flat":
        stays = "near" if abs(state.loss - state.start) <= MAX_NEAR * abs(state.start) else "above"
        return _with_reason(
            state, f"The loss{which} exploded at step {state.opened.first} and stays {stays} its initial value"
        )
    if math.isnan(state.peak):
        return f"A step replaced the weights, and the loss{which} is {wording.number(state.loss)}"
    before, peak = wording.figure(state.before), wording.figure(state.peak)
    if state.peak < 0:
        return f"The loss{which} falls from {before} to {peak}, far below its level"
    return _with_reason(state, f"The loss{which} rises from {before} to {peak}, far above its level")


def _with_reason(state: State, symptom: str) -> str:
    """Adds the reason, if a step was read that is larger than the weights."""
    return f"Steps are too large: {symptom[:1].lower()}{symptom[1:]}" if state.ratio >= RUINOUS_STEP else symptom


def cause(state: State) -> str:
    return f"Training diverges {state.opened.since}: {_course(state)}.{_steps(state)}{_norms(state)}{_rate(state)}"


def fix(state: State) -> str:
    rate = f"{_lower(state)} A warm-up over some hundred steps and {_clip(state)} limit the first steps."
    batch = ""
    if state.opened.first > EARLY_STEPS:
        batch = (
            f" If this rate worked before, look for what changed at step {state.opened.first}: the batch, the schedule,"
            " a term of the loss."
        )
    if state.peak < 0:
        rate = f"Check the sign of the loss: minimised without a lower limit, it diverges. {rate}"
    return f"{rate}{batch}"


def _course(state: State) -> str:
    first, which = state.opened.first, wording.of_loss(state.column)
    moved = "fell" if state.peak < 0 else "rose"
    began = "" if state.before == state.start else f" (at the start: {state.start:.4g})"
    if state.kind == "drifting":
        return f"the median of the last losses{which} is {state.loss:.4g}, above the initial {state.start:.4g}"
    if state.kind == "flat":
        return (
            f"the loss{which} {moved} from {state.before:.4g} to {state.peak:.4g} at step {first} and the steps"
            f" after it; the median of the later losses is {state.loss:.4g}, {_compared(state)} {state.start:.4g}"
        )
    if math.isnan(state.peak):
        return (
            f"the loss{which} was {state.before:.4g}{began}, and {wording.number(state.loss)} at step {state.nan_step},"
            f" after the step at {first} had replaced the weights"
        )
    end = f", and was NaN or infinite at step {state.nan_step}" if state.nan_step >= 0 else ""
    before, peak = wording.figure(state.before), wording.figure(state.peak)
    return f"the loss{which} {moved} from {before}{began} to as much as {peak}{end}"


def _compared(state: State) -> str:
    if state.loss >= state.start:
        return "no lower than the initial"
    return f"{wording.percent((state.start - state.loss) / abs(state.start))} below the initial"


def _steps(state: State) -> str:
    if math.isnan(state.ratio):
        return ""
    return f" Steps that were read changed the weights by up to {state.ratio:.2g} of their norm; 0.001 is usual."


def _norms(state: State) -> str:
    if math.isnan(state.norm) or math.isnan(state.norm_before):
        return ""
    norm, before = wording.figure(state.norm), wording.figure(state.norm_before)
    return f" The gradient norm reached {norm}; in earlier readings it was at most {before}."


def _rate(state: State) -> str:
    """Describes the rate, unless its readings are stated beside it; see learning_rates.py."""
    if not state.rate:
        return ""
    return "" if _rate_at_rise(state) else f" The learning rate{_of_optimizer(state)} was {state.rate} at the start."


def _of_optimizer(state: State) -> str:
    return f" of {state.optimizer}" if state.optimizer else ""


def _rate_at_rise(state: State) -> float:
    """Returns the learning rate that was read before the first step; 0 without one."""
    stated = state.rates.stated
    return stated.rate if stated.step >= 0 and stated.first == state.opened.first else 0.0


def _rate_at_start(state: State) -> float:
    try:
        return float(state.rate)
    except ValueError:
        return 0.0


def _lower(state: State) -> str:
    known = not math.isnan(state.ratio) and TARGET_STEP < state.ratio < math.inf
    factor = max(LOWER_BY, state.ratio / TARGET_STEP) if known else LOWER_BY
    read, start = _rate_at_rise(state), _rate_at_start(state)
    by = f"{float(f'{factor:.0e}'):,.0f}"
    if read > 0:
        lower = float(f"{read / factor:.0e}")
        return (
            f"Lower the learning rate{_of_optimizer(state)} to {lower:g} or less: at step {state.opened.first} it was"
            f" {read:.3g}, about {by} times that{_raised(state, read, start)}."
        )
    now = f": to {float(f'{start / factor:.0e}'):g}, if it is still the {state.rate} of the start" if start > 0 else ""
    return f"Divide the learning rate{_of_optimizer(state)} by {by} or more{now}."


def _raised(state: State, read: float, start: float) -> str:
    if not start > 0 or read < MIN_RAISE * start:
        return ""
    return f", because a schedule or the program raises it from the initial {state.rate}"


def _clip(state: State) -> str:
    limit = 2 * state.norm_before if state.norm_before > 0 else UNKNOWN_LIMIT
    return f"torch.nn.utils.clip_grad_norm_(model.parameters(), {limit:.2g})"
