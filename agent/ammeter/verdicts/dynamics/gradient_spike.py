"""gradient-spike: the gradient norm jumps far above all earlier values, or falls to almost zero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.dynamics import spike_wording
from ammeter.verdicts.dynamics.norm_baseline import BLOCK_READINGS
from ammeter.verdicts.dynamics.spike_episode import (
    ENORMOUS_RATIO_TO_PEAK,
    MIN_RATIO_TO_PEAK,
    MIN_SINGLE_RATIO,
    REPORTED,
    State,
    begin_episode,
    continue_episode,
    log_of,
    loss_stays,
    median_loss,
    with_report,
)
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict, module_of
from ammeter.verdicts.framework.learning_rates import stating_jumps
from ammeter.verdicts.framework.lifecycle import changed, lifecycle_fields
from ammeter.verdicts.framework.readings import Readings
from ammeter.wire.columns import Floats, Ints, View

MIN_RATIO = 10.0
"""Minimum ratio of a spike to the median norm. Norms of large runs exceed twice their mean regularly, and published
training curves call 5 to 10 times the mean a spike."""

MIN_DEVIATIONS = 6.0
"""Minimum number of robust deviations above the median: one in a thousand million of a lognormal norm."""

MIN_RATIO_TO_RECENT = 5.0
"""Minimum ratio to the largest of the last 8 norms: a norm that climbs, as in warm-up, is no spike."""

MIN_FALL_RATIO = 1000.0
"""Minimum ratio of the median to a vanished norm. The fall must occur at once and persist for VANISHED_READINGS while
the loss stays constant. A converged run reaches small norms slowly, and with a lower loss."""

REFERENCE_LOSSES = 16
"""Losses before a jump that are its reference: their median is constant even if batches differ by half."""


@stating_jumps
def judge(state: State, view: View) -> tuple[State, Finding | None]:
    after = _rows(state, view) if len(view) else state
    return after, changed(_conclude, state, after)


def _rows(state: State, rows: View) -> State:
    norms = rows.scalar("grad_norm")
    read = np.flatnonzero(np.isfinite(norms) & (rows.scalar("applied") > 0))
    if not read.size:
        return state
    logs = log_of(norms[read])
    start = 0
    while start < len(read):
        end = start + 1
        at, log = int(read[start]), float(logs[start])
        if state.since:
            state = with_report(continue_episode(state, rows, at, log))
        elif near := _near(state, logs[start : start + state.level.readings_left()]):
            end = start + near
            state = _with_level(state, rows, logs[start:end], read[start:end])
        elif (begun := _with_episode(state, rows, at, log)) is not None:
            state = with_report(begun)
        else:
            state = _with_level(state, rows, logs[start:end], read[start:end])
        start = end
    return state


def _near(state: State, logs: Floats) -> int:
    """Returns the number of leading readings that are near the level."""
    if not state.level.known:
        return state.level.before_record(logs, ENORMOUS_RATIO_TO_PEAK)
    far = np.flatnonzero((logs > state.high) | (logs < state.low))
    return int(far[0]) if far.size else len(logs)


def _with_level(state: State, rows: View, logs: Floats, read: Ints) -> State:
    """Adds readings to the level; updates the bounds if the level was recomputed."""
    before, level = state.level, state.level.with_readings(logs)
    losses = (state.losses + rows.loss()[read[-REFERENCE_LOSSES:]].tobytes())[-4 * REFERENCE_LOSSES :]
    state = replace(state, level=level, losses=losses)
    return state if level.computed_at == before.computed_at else _with_bounds(state)


def _with_bounds(state: State) -> State:
    """Updates the bounds of near readings from the level."""
    level = state.level
    high = max(
        level.middle + max(math.log(MIN_RATIO), MIN_DEVIATIONS * level.spread),
        max(level.highs) + math.log(MIN_RATIO_TO_PEAK),
    )
    low = min(
        level.middle - max(math.log(MIN_FALL_RATIO), MIN_DEVIATIONS * level.spread),
        min(level.lows) - math.log(MIN_RATIO),
    )
    return replace(state, high=high, low=low)


def _with_episode(state: State, rows: View, at: int, log: float) -> State | None:
    """Returns the state with an episode that begins at this reading; None if none does."""
    if state.level.known:
        return begin_episode(state, rows, at, log) if _jumps(state, rows, at, log) else None
    begun = begin_episode(_with_bounds(replace(state, level=state.level.recomputed())), rows, at, log)
    return begun if begun.enormous else None


def _jumps(state: State, rows: View, at: int, log: float) -> bool:
    if log > state.high:
        return log > float(state.level.recent.max()) + math.log(MIN_RATIO_TO_RECENT)
    falls = log < float(state.level.recent.min()) - math.log(MIN_SINGLE_RATIO)
    return falls and loss_stays(median_loss(state.losses), float(rows.loss()[at]))


def _conclude(state: State) -> Finding:
    state = replace(state, **dict(zip(REPORTED, state.reported, strict=False)))
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=spike_wording.title(state),
        cause=spike_wording.cause(state),
        fix=spike_wording.fix(state),
        tensor=state.tensor or None,
        module=module_of(state.tensor),
        evidence=wording.finite(_evidence(state)),
        **lifecycle_fields(state.opened),
    )


def _evidence(state: State) -> dict[str, Any]:
    return {
        "grad_norm": state.norm,
        "usual_grad_norm": state.usual,
        "readings_far_off": state.far,
        "clip_max": state.clip or None,
        "loss": state.loss,
        "loss_before": state.loss_before,
        "loss_scale": state.scale or None,
    }


VERDICT = Verdict(
    id="gradient-spike",
    severity="ticket",
    title="Gradients jump or vanish",
    question="Is the gradient norm suddenly far above or far below all earlier norms of the run?",
    columns=("grad_norm", "applied", "clip_max", "loss", "loss_backward", "scale", "grad.norm", "optimizer_lr"),
    events=(),
    needs=(Readings("grad_norm", BLOCK_READINGS + 1, within=16_384),),
    state=State,
    history=("grad_norm", "applied"),
    judge=judge,
    explains=("overflow-storm",),
)
