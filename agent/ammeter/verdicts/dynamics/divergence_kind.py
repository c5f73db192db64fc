"""What the losses, and the readings of steps and gradients, show: an explosion, a rise, a NaN, or nothing."""

from __future__ import annotations

import math

from ammeter.verdicts.dynamics.divergence_state import (
    AFTERMATH_LOSSES,
    DRIFT_LOSSES,
    MIN_DRIFT_STEPS,
    RUINOUS_STEP,
    STEPS_TO_NAN,
    State,
    learnt,
    replacing_step,
)
from ammeter.verdicts.dynamics.divergence_trace import Trace

MIN_FAR = 16
"""Losses in a row above three times the level that open the verdict if the steps or the gradients are large, too."""

LARGE_STEP = 0.1
"""Ratio of update norm to weight norm of a large step: a hundred times the usual 1e-3 (Karpathy, A Recipe for Training
Neural Networks, and cs231n). Adam at a usual rate reaches it in its first steps at most."""

MIN_LARGE_STEPS = 2
"""Readings of large steps that show more than the first step of Adam, which is the largest one without a warm-up."""

LARGE_NORM_RATIO = 100.0
"""Ratio of the gradient norm to all norms before the episode. The norm of a loss that grows only by its scale, such as
that of a squared error, grows by its root."""

MIN_RISE_BEFORE_NAN, MIN_FAR_BEFORE_NAN = 30.0, 3
"""Ratio of the last losses to the level, or number of far ones in a row, after which a NaN belongs to the rise."""

MIN_FAR_AFTER_RUIN = 3
"""Losses in a row above three times the level that open the verdict after a ruinous step. One may be a bad batch."""

EARLY_STEPS = 16
"""Steps in which an explosion alone shows that the run starts wrongly. Later, a large step must have been read, too: a
few batches with a mistaken weight do no lasting harm to a loss that is flat anyway."""

MIN_FAR_JUMPED = 64
"""Losses in a row that are far after one jump, if steps were read and none near the jump is large: a new objective or
new data looks the same, but training reduces its losses by a tenth in as many steps."""

MIN_FALLEN_NORM_RATIO = 1.2
"""Ratio of the gradient norm to all norms before, from which a fall below zero speeds up. The norm of a loss with a
lower limit shrinks on the way to it; the norms of batches that scatter by a tenth have maxima this close."""

MIN_FALLEN = 8
"""Losses a million times below the level that are an explosion whatever the norm of the gradients, which the program
may limit before it is read."""

MIN_OWN_NORM_RATIO = 10.0
"""Ratio of the gradient norm to all norms before, with which one of several losses explodes while another stays at its
level. A loss a thousand times as high has gradients 30 times as large, the root, if a step uses them."""

MIN_DRIFT = 0.1
"""Share by which the median of DRIFT_LOSSES must be above the initial loss."""

DRIFT_STEP, DRIFT_FROM = 0.2, 12
"""Ratio of steps that move the weights by a large share, and step of the earliest: the largest steps of a healthy run,
those from weights of zero, are a tenth of the weights after ten steps."""


def kind_of(state: State, before: Trace, trace: Trace, step: int, loss: float, other_is_calm: bool) -> str:
    """Returns what a loss shows: exploded, risen, nan, flat, or '' for nothing.

    Args:
        other_is_calm: Whether another loss of the same step is at its level.
    """
    if not math.isfinite(loss):
        return "nan" if not before.nonfinite and (rose(before) or replacing_step(state, before, step) >= 0) else ""
    if state.maximizes:
        return ""
    if _explodes(state, trace, other_is_calm):
        return "exploded"
    if trace.far >= MIN_FAR and (_steps_are_large(state, trace) or _gradients_are_large(state, trace)):
        return "risen"
    if trace.far >= MIN_FAR_AFTER_RUIN and _was_ruined(state, trace):
        return "risen"
    ruined = trace.left <= EARLY_STEPS or _had_large_step(state, trace)
    if trace.aftermath == AFTERMATH_LOSSES and ruined and _has_not_learnt(trace):
        return "flat"
    return ""


def rose(before: Trace) -> bool:
    """Whether a NaN belongs to a rise of the losses before it."""
    is_far = abs(before.peak) >= MIN_RISE_BEFORE_NAN * before.reference or before.far >= MIN_FAR_BEFORE_NAN
    return bool(before.since and before.far and is_far)


def _explodes(state: State, trace: Trace, other_is_calm: bool) -> bool:
    if not trace.has_exploded:
        return False
    if _had_large_step(state, trace):
        return True
    if trace.peak < 0 and trace.enormous < MIN_FALLEN and not _norm_exceeds(state, MIN_FALLEN_NORM_RATIO):
        return False
    if other_is_calm and not _norm_exceeds(state, MIN_OWN_NORM_RATIO):
        return False
    return not _may_be_new_data(state, trace)


def _may_be_new_data(state: State, trace: Trace) -> bool:
    """Whether a loss that jumped once, without a large step, may be that of a new objective or of new data."""
    if trace.left <= EARLY_STEPS or not trace.jumped or _had_large_step(state, trace):
        return False
    return trace.far < (MIN_FAR_JUMPED if state.ratios else MIN_FAR) or trace.falls


def _had_large_step(state: State, trace: Trace) -> bool:
    return state.large_step >= 0 and state.large_step >= trace.left - STEPS_TO_NAN


def _steps_are_large(state: State, trace: Trace) -> bool:
    large = [ratio for at, ratio in state.ratios if at >= trace.left - STEPS_TO_NAN and ratio >= LARGE_STEP]
    return len(large) >= MIN_LARGE_STEPS


def _was_ruined(state: State, trace: Trace) -> bool:
    """Whether a step just before the rise replaced the weights."""
    return any(trace.left - STEPS_TO_NAN <= at < trace.left and ratio >= RUINOUS_STEP for at, ratio in state.ratios)


def _gradients_are_large(state: State, trace: Trace) -> bool:
    is_large = 0 < LARGE_NORM_RATIO * state.norm_high <= state.norm_peak
    return is_large and not trace.falls and not _may_be_new_data(state, trace)


def _norm_exceeds(state: State, ratio: float) -> bool:
    """Whether the gradient norm of the episode exceeds those before, or one of them is unknown."""
    return state.norm_peak >= ratio * state.norm_high or not state.norm_peak


def _has_not_learnt(trace: Trace) -> bool:
    return trace.median(AFTERMATH_LOSSES) >= learnt(trace)


def drifts(state: State, trace: Trace) -> bool:
    last = state.ratios[-MIN_DRIFT_STEPS:]
    if len(last) < MIN_DRIFT_STEPS or last[0][0] < DRIFT_FROM or min(ratio for _, ratio in last) < DRIFT_STEP:
        return False
    return not state.maximizes and trace.median(DRIFT_LOSSES) >= trace.first + MIN_DRIFT * max(1.0, abs(trace.first))
