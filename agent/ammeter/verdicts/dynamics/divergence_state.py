"""The state of diverged, and how a finding opens, goes on and closes."""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.dynamics.divergence_trace import Trace, magnitude
from ammeter.verdicts.framework.learning_rates import Rates
from ammeter.verdicts.framework.lifecycle import Lifecycle

RUINOUS_STEP = 1.0
"""Ratio of a step that replaces the weights: it is larger than they are."""

STEPS_TO_NAN = 4
"""Steps from a ruinous step to the NaN that it causes: one for the loss, some more for skipped steps and readings."""

FIRST_STEPS, FIRST_RUINOUS_STEP = 4, 3.0
"""Steps in which weights that start at zero are as small as the steps, and the ratio from which a step replaces even
them: the second step of SGD with momentum, which is added to the first one, is at most twice as large as that."""

AFTERMATH_LOSSES = 32
"""Losses after an explosion whose median decides whether the run has lost what it had learnt."""

MAX_GAIN = 0.05
"""Share of the initial loss by which a median may be below it without a sign of learning. The median of 32 losses that
scatter by a sixth of their mean has a deviation of 4 %."""

DRIFT_LOSSES = 16
"""Losses whose median is compared with the initial loss."""

MIN_DRIFT_STEPS = 3
"""Readings in a row of steps that move the weights by a large share."""

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
    maximizes: bool = False
    """`maximizes`: whether an optimizer has maximize=True, which raises its objective by design."""
    doubted: str = ""
    """`doubted`: the column of a NaN at step `doubted_step` after a step that replaced the weights, until it is known
    that no input of the model had it. `doubted_loss`: NaN or Inf."""
    doubted_step: int = -1
    doubted_loss: float = math.nan
    rates: Rates = Rates()


def replacing_step(state: State, before: Trace, step: int) -> int:
    """Returns the step that replaced the weights just before a NaN at `step`; -1 without one.

    A step after which the loss was lower than before it did no harm.
    """
    losses = before.losses
    for at, ratio in state.ratios:
        limit = RUINOUS_STEP if at >= FIRST_STEPS else FIRST_RUINOUS_STEP
        if at < step - STEPS_TO_NAN or ratio < limit:
            continue
        since = step - at
        if since == 1 or len(losses) < since or losses[-1] > losses[-since]:
            return at
    return -1


def learnt(trace: Trace) -> float:
    """Returns the loss below which a run has learnt something."""
    return trace.first - MAX_GAIN * abs(trace.first)


def opened(state: State, kind: str, name: str, before: Trace, step: int, loss: float) -> State:
    trace = state.traces[name]
    rose = kind in ("exploded", "risen", "flat") or (kind == "nan" and before.since > 0 and before.far > 0)
    first = trace.left
    if kind == "drifting":
        first = state.ratios[-MIN_DRIFT_STEPS][0]
    elif not rose:
        first = replacing_step(state, before, step)
    ratios = [ratio for at, ratio in state.ratios if at >= first - STEPS_TO_NAN]
    return replace(
        state,
        opened=state.opened.at(first, step),
        kind=kind,
        column=name,
        bound=learnt(trace) if kind in ("flat", "drifting") else before.reference,
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
    return replace(
        state,
        kind="exploded" if trace.has_exploded else state.kind,
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
