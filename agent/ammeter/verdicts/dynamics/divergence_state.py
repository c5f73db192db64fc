"""The conditions on which diverged opens and closes, and its state."""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.dynamics.divergence_trace import Trace, magnitude
from ammeter.verdicts.framework.lifecycle import Lifecycle

MIN_EXPLODED, MIN_ENORMOUS = 8, 3
"""Losses of an episode above a thousand times, and a million times, the level that open the verdict. Four or five
batches in a row with a mistaken weight are a spike and end before."""

MIN_FAR = 16
"""Losses in a row above three times the level that open the verdict if the steps or the gradients are large, too."""

LARGE_STEP = 0.1
"""Ratio of update norm to weight norm of a large step: a hundred times the usual 1e-3 (Karpathy, A Recipe for Training
Neural Networks, and cs231n). Adam at a usual rate reaches it in its first steps at most."""

MIN_LARGE_STEPS = 2
"""Readings of large steps that show more than the first step of Adam, which is the largest one without a warm-up."""

RUINOUS_STEP = 1.0
"""Ratio of a step that replaces the weights: it is larger than they are."""

LARGE_NORM_RATIO = 100.0
"""Ratio of the gradient norm to all norms before the episode. The norm of a loss that grows only by its scale, such as
that of a squared error, grows by its root."""

MIN_RISE_BEFORE_NAN, MIN_FAR_BEFORE_NAN = 30.0, 3
"""Ratio of the last losses to the level, or number of far ones in a row, after which a NaN belongs to the rise."""

MIN_FAR_AFTER_RUIN = 3
"""Losses in a row above three times the level that open the verdict after a ruinous step. One may be a bad batch."""

STEPS_TO_NAN = 4
"""Steps from a ruinous step to the NaN that it causes: one for the loss, some more for skipped steps and readings."""

AFTERMATH_LOSSES = 32
"""Losses after an explosion whose median decides whether the run has lost what it had learnt."""

EARLY_STEPS = 16
"""Steps in which an explosion alone shows that the run starts wrongly. Later, a large step must have been read, too: a
few batches with a mistaken weight do no lasting harm to a loss that is flat anyway."""

MAX_GAIN = 0.05
"""Share of the initial loss by which a median may be below it without a sign of learning. The median of 32 losses that
scatter by a sixth of their mean has a deviation of 4 %."""

DRIFT_LOSSES, MIN_DRIFT = 16, 0.1
"""Losses whose median is compared with the initial loss, and the share by which it must be higher."""

DRIFT_STEP, MIN_DRIFT_STEPS, DRIFT_FROM = 0.2, 3, 12
"""Ratio of steps that move the weights by a large share, readings of it in a row, and step of the earliest: the largest
steps of a healthy run, those from weights of zero, are a tenth of the weights after ten steps."""

RECOVERED_LOSSES = 32
"""Consecutive losses near the level that close the verdict."""


class State(msgspec.Struct, frozen=True, array_like=True):
    """The state of diverged.

    Attributes:
        traces: Column of a loss -> its trace.
        ratios: (step, update ratio) of the last readings.
        large_step: Step of the last reading of a large step; -1 without one.
        norm_high: Largest gradient norm outside of episodes.
        norm_peak: Largest gradient norm of the present episode.
        rate: Learning rate at the start, as the stream's hello has it.
        kind: What opened the verdict: exploded, risen, nan, flat or drifting.
        column: The column of the loss that opened it.
        bound: The largest loss that counts as a recovery.
        calm: Consecutive losses of this column up to `bound` since then.
        nan_step: Step at which this loss became NaN or Inf; -1 while it is finite.
    """

    opened: Lifecycle = Lifecycle()
    traces: dict[str, Trace] = {}
    ratios: tuple[tuple[int, float], ...] = ()
    large_step: int = -1
    norm_high: float = 0.0
    norm_peak: float = 0.0
    rate: str = ""
    optimizer: str = ""
    kind: str = ""
    column: str = ""
    bound: float = math.nan
    calm: int = 0
    nan_step: int = -1
    start: float = math.nan
    """`start`, `before`, `loss`, `peak`: loss at the start, before the rise, at opening, and largest at opening."""
    before: float = math.nan
    loss: float = math.nan
    peak: float = math.nan
    ratio: float = math.nan
    """`ratio`: largest update ratio. `norm`, `norm_before`: largest gradient norm, and largest before the rise."""
    norm: float = math.nan
    norm_before: float = math.nan


def kind_of(state: State, before: Trace, trace: Trace, step: int, loss: float) -> str:
    """Returns what a loss shows: exploded, risen, nan, flat, or '' for nothing."""
    if not math.isfinite(loss):
        if before.nonfinite:
            return ""
        rose = abs(before.peak) >= MIN_RISE_BEFORE_NAN * before.reference or before.far >= MIN_FAR_BEFORE_NAN
        ruinous = any(at >= step - STEPS_TO_NAN and ratio >= RUINOUS_STEP for at, ratio in state.ratios)
        return "nan" if ruinous or (before.since and before.far and rose) else ""
    if trace.exploded >= MIN_EXPLODED or trace.enormous >= MIN_ENORMOUS:
        return "exploded"
    if trace.far >= MIN_FAR and (_steps_are_large(state, trace) or (_norms_are_large(state) and not trace.falls)):
        return "risen"
    if trace.far >= MIN_FAR_AFTER_RUIN and _was_ruined(state, trace):
        return "risen"
    ruined = trace.left <= EARLY_STEPS or state.large_step >= trace.left - STEPS_TO_NAN
    if trace.aftermath == AFTERMATH_LOSSES and ruined and _has_not_learnt(trace):
        return "flat"
    return ""


def _steps_are_large(state: State, trace: Trace) -> bool:
    large = [ratio for at, ratio in state.ratios if at >= trace.left - STEPS_TO_NAN and ratio >= LARGE_STEP]
    return len(large) >= MIN_LARGE_STEPS


def _was_ruined(state: State, trace: Trace) -> bool:
    """Whether a step just before the rise replaced the weights."""
    return any(trace.left - STEPS_TO_NAN <= at < trace.left and ratio >= RUINOUS_STEP for at, ratio in state.ratios)


def _norms_are_large(state: State) -> bool:
    return 0 < LARGE_NORM_RATIO * state.norm_high <= state.norm_peak


def _has_not_learnt(trace: Trace) -> bool:
    return trace.median(AFTERMATH_LOSSES) >= _learnt(trace)


def _learnt(trace: Trace) -> float:
    """Returns the loss below which a run has learnt something."""
    return trace.first - MAX_GAIN * max(1.0, abs(trace.first))


def drifts(state: State, trace: Trace) -> bool:
    last = state.ratios[-MIN_DRIFT_STEPS:]
    if len(last) < MIN_DRIFT_STEPS or last[0][0] < DRIFT_FROM or min(ratio for _, ratio in last) < DRIFT_STEP:
        return False
    return trace.median(DRIFT_LOSSES) >= trace.first + MIN_DRIFT * max(1.0, abs(trace.first))


def opened(state: State, kind: str, name: str, before: Trace, step: int, loss: float) -> State:
    trace = state.traces[name]
    rose = kind in ("exploded", "risen", "flat") or (kind == "nan" and before.since > 0 and before.far > 0)
    first = trace.left
    if kind == "drifting":
        first = state.ratios[-MIN_DRIFT_STEPS][0]
    elif not rose:
        first = next(at for at, ratio in state.ratios if at >= step - STEPS_TO_NAN and ratio >= RUINOUS_STEP)
    ratios = [ratio for at, ratio in state.ratios if at >= first - STEPS_TO_NAN]
    return replace(
        state,
        opened=state.opened.at(first, step),
        kind=kind,
        column=name,
        bound=_learnt(trace) if kind in ("flat", "drifting") else before.reference,
        calm=0,
        nan_step=step if kind == "nan" else -1,
        start=trace.first,
        before=trace.before if rose else before.last,
        loss=trace.median(DRIFT_LOSSES) if kind in ("flat", "drifting") else loss,
        peak=trace.peak if rose else math.nan,
        ratio=max(ratios, default=math.nan),
        norm=state.norm_peak if rose and state.norm_peak > 0 else math.nan,
        norm_before=state.norm_high if state.norm_high > 0 else math.nan,
    )


def continued(state: State, step: int, loss: float, known: bool) -> State:
    """Adds a loss to an open finding."""
    if not known:
        return state
    if not math.isfinite(loss):
        nan_step = step if state.nan_step < 0 else state.nan_step
        return replace(state, opened=state.opened.until(step), calm=0, nan_step=nan_step)
    if loss > state.bound or (state.peak < 0 and magnitude(loss, state.bound) > 1):
        return _grown(replace(state, opened=state.opened.until(step), calm=0), loss)
    if state.calm + 1 < RECOVERED_LOSSES:
        return replace(state, calm=state.calm + 1)
    return forget_aftermath(replace(state, opened=state.opened.over()))


def _grown(state: State, loss: float) -> State:
    """Updates the largest loss and norm of a rise, which may become an explosion."""
    if math.isnan(state.peak):
        return state
    trace = state.traces[state.column]
    exploded = trace.exploded >= MIN_EXPLODED or trace.enormous >= MIN_ENORMOUS
    return replace(
        state,
        kind="exploded" if exploded else state.kind,
        peak=max(state.peak, loss, key=abs),
        norm=state.norm_peak if state.norm_peak > 0 else state.norm,
    )


def forget_aftermath(state: State) -> State:
    """Drops the aftermath of explosions that is decided."""
    decided = {
        name: replace(trace, aftermath=-1)
        for name, trace in state.traces.items()
        if trace.aftermath >= AFTERMATH_LOSSES
    }
    return replace(state, traces=state.traces | decided) if decided else state
