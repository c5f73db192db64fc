"""The state of gradient-spike, and the episode of far readings that its finding is about."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.dynamics.norm_baseline import NormBaseline
from ammeter.verdicts.framework.learning_rates import Rates
from ammeter.verdicts.framework.lifecycle import Lifecycle
from ammeter.wire.columns import Floats, View

MIN_RATIO_TO_PEAK = 3.0
"""Minimum ratio to the largest of the last thousand norms: occasional peaks of a noisy run are normal for that run."""

MIN_FAR_READINGS, AMONG_READINGS = 3, 4
"""Such norms among four readings that open the verdict. A single one is a bad batch, which a clip or Adam tolerates."""

ENORMOUS_RATIO, ENORMOUS_RATIO_TO_PEAK, ENORMOUS_DEVIATIONS = 1e3, 100.0, 20.0
"""Ratio to the median and to the largest norm so far, and robust deviations above the median, of a single norm that
opens the verdict at once: ten times the weight of a rare sample, and beyond all heavy tails but those that occur in the
readings before."""

ENORMOUS_RATIO_WITH_LOSS, MIN_LOSS_RATIO = 300.0, 10.0
"""The ratio to the median that suffices if the loss of the step is ten times as high as before: a weight of the sample
multiplies both alike."""

MIN_RECORD_LOSS_RATIO = 100.0
"""The ratio to the largest of the last sixteen losses from which the deviations of the norm no longer count: they are
wide in the first steps of a run, in which norms rise or fall, and the loss is a second witness of the same step."""

MAX_ENORMOUS_SPREAD, MIN_TAIL_RATIO = 0.5, 3.0
"""Deviation of the norms' logarithms above which no single reading is beyond the noise, and ratio of its distance from
the median to that of the largest norm so far: in the noise of heavy tails, records exceed each other by less."""

MIN_ENORMOUS_NORM = 100.0
"""Smallest such norm: the usual ones are 0.01 to 100. The gradients of a run whose loss was almost constant, as without
any reward, become usual ones in a single step."""

MIN_SINGLE_RATIO = 100.0
"""Multiple of the median from which a single norm may be reported. The conditions are that no clip limited it and that
the loss does not recover. A vanishing norm must also be this many times below the smallest of the last 8 norms."""

WITHIN_LOSSES, MIN_WORSE_LOSSES = 10, 8
"""Ten losses after a spike, and the number above all sixteen before it. Eight of ten show that the loss does not
recover; with noise it is one of them."""

UNIT_LOSS = 1.0
"""Smallest loss that ratios of losses refer to: a loss near zero has no scale of its own."""

VANISHED_READINGS = 10
"""Readings in a row with a vanished norm that open the verdict."""

MAX_LOSS_FALL = 0.5
"""Share of the old loss. A lower loss means that small gradients are a result of learning."""

CALM_READINGS = 32
"""Readings in a row at the former level that close the verdict."""

SETTLED_READINGS = 256
"""Readings after which the new level counts as the run's own level."""

TINY = float(np.finfo(np.float32).tiny)
"""Smallest normal float32, which replaces a norm of zero before the logarithm."""

REPORTED = ("first", "far", "up", "norm", "usual", "tensor", "clip", "loss", "loss_before", "scale")
"""The state's fields that a finding uses. States of earlier releases have no scale."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    level: NormBaseline = NormBaseline()
    losses: bytes = b""
    """The last REFERENCE_LOSSES losses before the jump, as float32."""
    high: float = math.inf
    low: float = -math.inf
    """`high`, `low`: logarithms of the norms that limit the level. A reading beyond them is far."""
    first: int = -1
    since: int = 0
    """`first`: step of the episode's first far reading. `since`: number of readings since."""
    far: int = 0
    calm: int = 0
    worse: int = 0
    """Number of losses since then that were above all earlier ones."""
    up: bool = True
    norm: float = 0.0
    """`norm`: the largest of the far norms. `usual`: the level's median before them."""
    usual: float = 0.0
    tensor: str = ""
    clip: float = 0.0
    """Limit of the program's clip, 0 without one."""
    loss: float = math.nan
    """`loss`: loss at the first far reading. `loss_before`: the median loss before it."""
    loss_before: float = math.nan

    reported: tuple[Any, ...] = ()
    """Values of REPORTED when the verdict last held. Later readings do not change them."""
    column: str = ""
    """The name of the loss, if the run has several."""
    enormous: bool = False
    """Whether a norm of the episode opens the verdict by itself."""
    scale: float = 0.0
    """Loss scale at the first far reading, 0 if unknown."""
    rates: Rates = Rates()

    @property
    def loss_known(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.loss_before)


def begin_episode(state: State, rows: View, at: int, log: float) -> State:
    """Starts an episode at the first reading that is far from the level."""
    up, clip, step = log > state.high, float(rows.scalar("clip_max")[at]), int(rows.steps[at])
    loss, loss_before = float(rows.loss()[at]), median_loss(state.losses)
    enormous = is_enormous(state, log, loss, loss_before)
    return replace(
        state,
        opened=state.opened.at(step, step) if enormous else state.opened,
        enormous=enormous,
        first=step,
        since=1,
        far=1,
        calm=0,
        worse=0,
        up=up,
        norm=norm_of(log),
        usual=math.exp(state.level.middle),
        tensor=_largest(rows, at) if up else "",
        clip=clip if clip > 0 else 0.0,
        loss=loss,
        loss_before=loss_before,
        column=rows.loss_at(at),
        scale=_scale_at(rows, at),
    )


def continue_episode(state: State, rows: View, at: int, log: float) -> State:
    """Adds one reading to an episode, until the episode is decided."""
    step, loss = int(rows.steps[at]), float(rows.loss()[at])
    far = log > state.high if state.up else log < state.low and loss_stays(state.loss_before, loss)
    state = replace(state, since=state.since + 1, far=state.far + far, calm=0 if far else state.calm + 1)
    if not state.opened.active and loss > _highest(state.losses):
        state = replace(state, worse=state.worse + 1)
    if far and state.opened.active:
        state = replace(state, opened=state.opened.until(step))
    if far and not state.up:
        state = replace(state, norm=max(state.norm, norm_of(log)))
    if far and state.up and math.exp(log) > state.norm:
        state = replace(state, norm=math.exp(log), tensor=_largest(rows, at))
    if not state.opened.active:
        state = replace(state, enormous=is_enormous(state, log, loss, state.loss_before))
        return _decided(state, step)
    if state.calm >= CALM_READINGS:
        return _over(state)
    if state.since < SETTLED_READINGS:
        return state
    return _over(replace(state, level=NormBaseline(), high=math.inf, low=-math.inf))


def with_report(state: State) -> State:
    """Stores the values of the finding while the verdict holds."""
    return replace(state, reported=tuple(getattr(state, name) for name in REPORTED)) if state.opened.active else state


def _decided(state: State, step: int) -> State:
    if not state.up:
        if state.calm:
            return _over(state)
        return replace(state, opened=state.opened.at(state.first, step)) if state.far >= VANISHED_READINGS else state
    if state.enormous or (state.far >= MIN_FAR_READINGS and state.since <= AMONG_READINGS):
        return replace(state, opened=state.opened.at(state.first, step))
    if state.since <= WITHIN_LOSSES:
        return state
    enormous = state.norm > MIN_SINGLE_RATIO * state.usual and not 0 < state.clip < state.norm
    if enormous and state.worse >= MIN_WORSE_LOSSES:
        return replace(state, opened=state.opened.at(state.first, step))
    return _single_batch(state)


def _single_batch(state: State) -> State:
    """Ends an episode of a single batch; raises the bound for later ones."""
    high = math.log(state.norm)
    return _over(
        replace(state, level=state.level.with_high(high), high=max(state.high, high + math.log(MIN_RATIO_TO_PEAK)))
    )


def _over(state: State) -> State:
    return replace(state, since=0, far=0, calm=0, opened=state.opened.over())


def is_enormous(state: State, log: float, loss: float, loss_before: float) -> bool:
    """Whether a single norm is beyond everything that noise and rare samples cause."""
    level = state.level
    if level.spread > MAX_ENORMOUS_SPREAD or log < math.log(MIN_ENORMOUS_NORM):
        return False
    highest = max(level.highs)
    if log < max(highest + math.log(ENORMOUS_RATIO_TO_PEAK), level.middle + MIN_TAIL_RATIO * (highest - level.middle)):
        return False
    jumps = loss >= MIN_LOSS_RATIO * max(abs(loss_before), UNIT_LOSS)
    ratio = ENORMOUS_RATIO_WITH_LOSS if jumps else ENORMOUS_RATIO
    record = MIN_RECORD_LOSS_RATIO * max(_largest_loss(state.losses), UNIT_LOSS)
    deviations = 0.0 if record <= loss < math.inf else ENORMOUS_DEVIATIONS
    return log >= level.middle + max(math.log(ratio), deviations * level.spread)


def log_of(norms: Floats) -> Floats:
    """Returns the logarithms of norms, of which 0 counts as TINY."""
    return np.log(np.maximum(norms, TINY))


def norm_of(log: float) -> float:
    """Returns the norm with this logarithm, 0 for the smallest."""
    norm = math.exp(log)
    return norm if norm > 2 * TINY else 0.0


def loss_stays(before: float, loss: float) -> bool:
    """Whether the loss is still at its old level.

    Gradients that vanish together with the loss are a result of learning.
    """
    return loss >= before - MAX_LOSS_FALL * abs(before)


def median_loss(losses: bytes) -> float:
    """Returns the median of the finite losses, NaN if there is none."""
    finite = _finite(losses)
    return float(np.median(finite)) if finite.size else math.nan


def _highest(losses: bytes) -> float:
    finite = _finite(losses)
    return float(finite.max()) if finite.size else math.inf


def _largest_loss(losses: bytes) -> float:
    """Returns the largest |loss| of the finite losses, inf if there is none."""
    finite = _finite(losses)
    return float(np.abs(finite).max()) if finite.size else math.inf


def _finite(losses: bytes) -> Floats:
    numbers = np.frombuffer(losses, np.float32)
    return numbers[np.isfinite(numbers)]


def _scale_at(rows: View, at: int) -> float:
    scale = float(rows.scalar("scale")[at])
    return scale if 0 < scale < math.inf else 0.0


def _largest(rows: View, at: int) -> str:
    """Returns the tensor with the largest gradient norm; '' if none was read."""
    norms = rows.stat("grad.norm")[:, at]
    known = np.flatnonzero(np.isfinite(norms))
    return rows.schema.tensors[int(known[np.argmax(norms[known])])].name if known.size else ""
