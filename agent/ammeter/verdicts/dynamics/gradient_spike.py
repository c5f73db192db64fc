"""gradient-spike: the gradient norm jumps far above all earlier values, or falls to almost zero."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.dynamics.norm_baseline import NormBaseline
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict, module_of
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.wire.columns import Floats, Ints, View

FAR = 10.0
"""Minimum ratio of a spike to the median norm. Norms of large runs exceed twice their mean regularly, and published
training curves call 5 to 10 times the mean a spike."""

DEVIATIONS = 6.0
"""Minimum number of robust deviations above the median: one in a thousand million of a lognormal norm."""

BEYOND = 3.0
"""Minimum ratio to the largest of the last thousand norms: occasional peaks of a noisy run are normal for that run."""

JUMP = 5.0
"""Minimum ratio to the largest of the last 8 norms: a norm that climbs, as in warm-up, is no spike."""

SUSTAINED, AMONG = 3, 4
"""Such norms among four readings that open the verdict. A single one is a bad batch, which a clip or Adam tolerates."""

ENORMOUS = 100.0
"""Multiple of the median from which a single norm may be reported. The conditions are that no clip limited it and that
the loss does not recover. A vanishing norm must also be this many times below the smallest of the last 8 norms."""

WITHIN_STEPS, WORSE = 10, 8
"""Ten losses after a spike, and the number above all sixteen before it. Eight of ten show that the loss does not
recover; with noise it is one of them."""

VANISHED = 1000.0
"""Minimum ratio of the median to a vanished norm. The fall must occur at once and persist for GONE readings in a row
while the loss stays constant. A converged run reaches small norms slowly, and with a lower loss."""

GONE = 10

FALLEN = 0.5
"""Share of the old loss. A lower loss means that small gradients are a result of learning."""

CALM = 32
"""Readings in a row at the former level that close the verdict."""

SETTLED = 256
"""Readings after which the new level counts as the run's own level."""

TINY = float(np.finfo(np.float32).tiny)
LOSSES = 16
"""Losses before a jump that are kept as its reference: their median is constant even if batches differ by half."""


SAID = ("first", "far", "up", "norm", "usual", "tensor", "clip", "loss", "loss_before")
"""The state's fields that a finding uses."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    level: NormBaseline = NormBaseline()
    losses: bytes = b""
    """The last LOSSES losses before the jump, as float32."""
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

    told: tuple[Any, ...] = ()
    """Values of SAID when the verdict last held. Later readings do not change them."""
    column: str = ""
    """The name of the loss, if the run has several."""

    @property
    def loss_known(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.loss_before)


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    after = _rows(state, view) if len(view) else state
    return after, changed(_conclude, state, after)


def _rows(state: State, rows: View) -> State:
    norms = rows.scalar("grad_norm")
    taken = np.flatnonzero(np.isfinite(norms) & (rows.scalar("applied") > 0))
    if not taken.size:
        return state
    logs = np.log(np.maximum(norms[taken], TINY))
    begin = 0
    while begin < len(taken):
        end = begin + 1
        at, log = int(taken[begin]), float(logs[begin])
        if state.since:
            state = _noted(_looked_into(state, rows, at, log))
        elif near := _near(state, logs[begin : begin + state.level.room()]):
            end = begin + near
            state = _learnt(state, rows, logs[begin:end], taken[begin:end])
        elif _jumps(state, rows, at, log):
            state = _begun(state, rows, at, log)
        else:
            state = _learnt(state, rows, logs[begin:end], taken[begin:end])
        begin = end
    return state


def _near(state: State, logs: Floats) -> int:
    """Returns the number of leading readings that are near the level."""
    if not state.level.known:
        return len(logs)
    far = np.flatnonzero((logs > state.high) | (logs < state.low))
    return int(far[0]) if far.size else len(logs)


def _learnt(state: State, rows: View, logs: Floats, taken: Ints) -> State:
    """Adds readings to the level; updates the bounds if the level was recomputed."""
    before, level = state.level, state.level.with_readings(logs)
    losses = (state.losses + rows.loss()[taken[-LOSSES:]].tobytes())[-4 * LOSSES :]
    state = replace(state, level=level, losses=losses)
    if level.taken == before.taken:
        return state
    high = max(level.middle + max(math.log(FAR), DEVIATIONS * level.spread), max(level.highs) + math.log(BEYOND))
    low = min(level.middle - max(math.log(VANISHED), DEVIATIONS * level.spread), min(level.lows) - math.log(FAR))
    return replace(state, high=high, low=low)


def _jumps(state: State, rows: View, at: int, log: float) -> bool:
    if log > state.high:
        return log > float(state.level.recent.max()) + math.log(JUMP)
    falls = log < float(state.level.recent.min()) - math.log(ENORMOUS)
    return falls and _kept(_median(state.losses), float(rows.loss()[at]))


def _begun(state: State, rows: View, at: int, log: float) -> State:
    """Starts an episode at the first reading that is far from the level."""
    up, clip = log > state.high, float(rows.scalar("clip_max")[at])
    return replace(
        state,
        first=int(rows.steps[at]),
        since=1,
        far=1,
        calm=0,
        worse=0,
        up=up,
        norm=math.exp(log),
        usual=math.exp(state.level.middle),
        tensor=_largest(rows, at) if up else "",
        clip=clip if clip > 0 else 0.0,
        loss=float(rows.loss()[at]),
        loss_before=_median(state.losses),
        column=rows.loss_at(at),
    )


def _looked_into(state: State, rows: View, at: int, log: float) -> State:
    """Adds one reading to an episode, until the episode is decided."""
    step, loss = int(rows.steps[at]), float(rows.loss()[at])
    far = log > state.high if state.up else log < state.low and _kept(state.loss_before, loss)
    state = replace(state, since=state.since + 1, far=state.far + far, calm=0 if far else state.calm + 1)
    if not state.opened.active and loss > _highest(state.losses):
        state = replace(state, worse=state.worse + 1)
    if far and state.opened.active:
        state = replace(state, opened=state.opened.until(step))
    if far and not state.up:
        state = replace(state, norm=max(state.norm, math.exp(log)))
    if far and state.up and math.exp(log) > state.norm:
        state = replace(state, norm=math.exp(log), tensor=_largest(rows, at))
    if not state.opened.active:
        return _decided(state, step)
    if state.calm >= CALM:
        return _over(state)
    if state.since < SETTLED:
        return state
    return _over(replace(state, level=NormBaseline(), high=math.inf, low=-math.inf))


def _noted(state: State) -> State:
    return replace(state, told=tuple(getattr(state, name) for name in SAID)) if state.opened.active else state


def _decided(state: State, step: int) -> State:
    if not state.up:
        gone = replace(state, opened=state.opened.at(state.first, step)) if state.far >= GONE else state
        return _over(state) if state.calm else gone
    if state.far >= SUSTAINED and state.since <= AMONG:
        return replace(state, opened=state.opened.at(state.first, step))
    if state.since <= WITHIN_STEPS:
        return state
    enormous = state.norm > ENORMOUS * state.usual and not 0 < state.clip < state.norm
    if enormous and state.worse >= WORSE:
        return replace(state, opened=state.opened.at(state.first, step))
    return _alone(state)


def _alone(state: State) -> State:
    """Ends an episode of a single batch; raises the bound for later ones."""
    high = math.log(state.norm)
    return _over(replace(state, level=state.level.with_high(high), high=max(state.high, high + math.log(BEYOND))))


def _over(state: State) -> State:
    return replace(state, since=0, far=0, calm=0, opened=state.opened.over())


def _kept(before: float, loss: float) -> bool:
    """Whether the loss is still at its old level.

    Gradients that vanish together with the loss are a result of learning.
    """
    return loss >= before - FALLEN * abs(before)


def _median(losses: bytes) -> float:
    found = np.frombuffer(losses, np.float32)
    found = found[np.isfinite(found)]
    return float(np.median(found)) if found.size else math.nan


def _highest(losses: bytes) -> float:
    found = np.frombuffer(losses, np.float32)
    found = found[np.isfinite(found)]
    return float(found.max()) if found.size else math.inf


def _largest(rows: View, at: int) -> str:
    """Returns the tensor with the largest gradient norm; '' if none was read."""
    norms = rows.stat("grad.norm")[:, at]
    known = np.flatnonzero(np.isfinite(norms))
    return rows.schema.tensors[int(known[np.argmax(norms[known])])].name if known.size else ""


def _conclude(state: State) -> Finding:
    state = replace(state, **dict(zip(SAID, state.told, strict=True)))
    times = state.norm / state.usual if state.up else state.usual / state.norm
    jumps = f"jumps to {_times(times)} times what it was" if state.up else "falls to next to nothing"
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"The gradient norm {jumps}",
        cause=_rise(state, times) if state.up else _fall(state),
        fix=_mend(state) if state.up else _revive(state),
        tensor=state.tensor or None,
        module=module_of(state.tensor),
        evidence=wording.finite(
            {
                "grad_norm": state.norm,
                "usual_grad_norm": state.usual,
                "readings_far_off": state.far,
                "clip_max": state.clip or None,
                "loss": state.loss,
                "loss_before": state.loss_before,
            }
        ),
        **lifecycle_fields(state.opened),
    )


def _times(times: float) -> str:
    return f"{times:,.0f}" if times >= 100 else f"{times:.3g}"


def _rise(state: State, times: float) -> str:
    most = f", most of it in {state.tensor}" if state.tensor else ""
    which = wording.of_loss(state.column)
    loss = (
        f" The loss{which} was {state.loss:.4g} there and {state.loss_before:.4g} before." if state.loss_known else ""
    )
    return (
        f"At step {state.first} the norm of the gradients left the {state.usual:.3g} it had been around and reached"
        f" {state.norm:.3g}, {_times(times)} times as much{most}, in {wording.count(state.far, 'step')} that were read."
        f"{loss}"
    )


def _fall(state: State) -> str:
    return (
        f"From step {state.first} on the norm of the gradients was {state.norm:.3g} or less in"
        f" {wording.count(state.far, 'reading')}, where it had been around {state.usual:.3g}, while the"
        f" loss{wording.of_loss(state.column)} was {state.loss:.4g}: steps of that size hardly learn."
    )


def _mend(state: State) -> str:
    limit = 2 * state.usual
    clipped = f"Your clip at {state.clip:g} bounds the size of the step, not its direction." if state.clip else ""
    limited = clipped or f"Limit the norm: torch.nn.utils.clip_grad_norm_(model.parameters(), {limit:.2g})."
    return (
        f"Look at the batch and at what changed at step {state.first}: data, learning rate, a term of the loss."
        f" {limited} If the loss does not come back, go back to a checkpoint before step {state.first}, leave that"
        " batch out, and train on with a third of the learning rate."
    )


def _revive(state: State) -> str:
    return (
        f"Look at what changed at step {state.first}: a mask or a weight that makes the loss constant, a detach() or"
        " no_grad() on the way from the loss to the weights, activations that saturate. Go back to a checkpoint before"
        f" step {state.first} if the weights moved there."
    )


VERDICT = Verdict(
    id="gradient-spike",
    severity="ticket",
    title="Gradients jump or vanish",
    question="Has the gradient norm jumped far beyond, or fallen far below, anything the run has shown?",
    columns=("grad_norm", "applied", "clip_max", "loss", "loss_backward", "grad.norm"),
    events=(),
    state=State,
    judge=judge,
    explains=("overflow-storm",),
)
