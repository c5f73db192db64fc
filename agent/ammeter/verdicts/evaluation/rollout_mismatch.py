"""rollout-mismatch: the policy that is trained and the one that samples give the same tokens other probabilities.

Programs of reinforcement learning log the difference: a KL divergence, or a mean difference of log-probabilities.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from statistics import median

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.wire.columns import View, measured
from ammeter.wire.frames import Event

FIRST_VALUES = 5
"""Values whose median is the start. Two kernels differ from the first step on, so only a change counts."""

GROWTH = 10.0
"""Factor over the start. Rounding alone stays near its start; a tenfold difference has another cause."""

MIN_KL = 0.01
"""KL divergence in nats per token, from which on implementations correct or drop samples."""

MIN_DIFFERENCE = math.sqrt(2 * MIN_KL)
"""The same as a mean difference of log-probabilities: KL is at least half of its square, for small differences."""

IN_A_ROW = 3
"""Values above both limits that open the verdict, and below them that close it."""

_SIDES = frozenset({"mismatch", "vllm", "sglang", "sampler", "sampling", "corr"})
_MORE_SIDES = _SIDES | {"rollout", "inference"}
_LOGPROBS = frozenset({"logp", "logps", "logprob", "logprobs"})
_DIFFERENCES = frozenset({"diff", "difference"})
_OTHERS = frozenset({"ref", "reference", "max", "min", "std", "coef", "penalty", "loss"})
"""Words of names such as `mismatch_kl`, `vllm_kl` and `rollout_logprob_diff`. A KL to the reference policy grows by
design, and `rollout/kl` may be that one."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    name: str = ""
    """The first logged value of this kind, which is followed."""
    first: tuple[float, ...] = ()
    above: int = 0
    below: int = 0
    since: int = -1
    """`above`: values in a row above both limits, the first of them at `since`; `below`: values in a row that are not,
    while it is open."""
    value: float = 0.0
    """The last value when the verdict opened."""
    step: int = -1


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    names = _mismatches(view.schema.scalars)
    for part in view.parts("values.logged"):
        if isinstance(part, View):
            for name in names:
                values = part.scalar(name)
                for at in np.flatnonzero(measured(values)).tolist():
                    state = _value(state, name, int(part.steps[at]), float(values[at]))
        elif isinstance(part, Event):
            for name, value in part.data.items():
                if unit_of(name) and isinstance(value, int | float):
                    state = _value(state, name, part.step, float(value))
    return state, changed(_conclude, before, state)


@lru_cache(maxsize=64)
def _mismatches(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if unit_of(name))


def unit_of(name: str) -> str:
    """Returns 'kl' or 'difference' for a logged mismatch of trainer and sampler, by the words of its name, else ''."""
    words = set(re.split(r"[^a-z]+", name.lower()))
    if words & _OTHERS:
        return ""
    if "kl" in words:
        return "kl" if words & _SIDES else ""
    return "difference" if words & _MORE_SIDES and words & _LOGPROBS and words & _DIFFERENCES else ""


def _value(state: State, name: str, step: int, value: float) -> State:
    if (state.name and name != state.name) or step <= state.step or not math.isfinite(value):
        return state
    state, value = replace(state, name=name, step=step), abs(value)
    if len(state.first) < FIRST_VALUES:
        return replace(state, first=(*state.first, value))
    limit = max(GROWTH * median(state.first), MIN_KL if unit_of(name) == "kl" else MIN_DIFFERENCE)
    if value < limit:
        below = state.below + state.opened.active
        over = state.opened.over() if below >= IN_A_ROW else state.opened
        return replace(state, above=0, below=below, opened=over)
    state = replace(state, above=state.above + 1, below=0, since=state.since if state.above else step)
    if state.above < IN_A_ROW:
        return state
    shown = state.value if state.opened.active else value
    return replace(state, value=shown, opened=state.opened.at(state.since, step))


def _conclude(state: State) -> Finding:
    start, unit = median(state.first), unit_of(state.name)
    what = "KL divergence" if unit == "kl" else "mean difference of log-probabilities"
    least = "" if unit == "kl" else f" That is a KL divergence of about {state.value**2 / 2:.2g} or more."
    times = f", {state.value / start:.0f} times as much" if start > 0 else ""
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"The sampler no longer has the trainer's policy: {state.name} rises to {state.value:.3g}",
        cause=(
            f"The {what} between the policy that is trained and the one that samples, logged as {state.name}, is"
            f" {state.value:.3g} {state.opened.since}{times} as at the start ({start:.3g}, the median of"
            f" {FIRST_VALUES} values).{least} So the samples come from another policy than the one whose gradients are"
            " computed."
        ),
        fix=f"Check first that updates of the weights still reach the sampler: the difference grew at step"
        f" {state.opened.first}, and rounding alone would be there from the start. Then compare the dtypes on both"
        " sides at that step, and compute the head and the softmax in float32 on both. Until they agree, weight each"
        " sample by the ratio of the two probabilities, limited to 2 (truncated importance sampling).",
        evidence={"metric": state.name, "unit": unit, "at_start": start, "value": state.value, "values": IN_A_ROW},
        **lifecycle_fields(state.opened),
    )


VERDICT = Verdict(
    id="rollout-mismatch",
    severity="ticket",
    title="Trainer and sampler differ",
    question="Does the policy that samples move away from the trained one, by a difference that the program logs?",
    columns=(),
    events=("values.logged",),
    state=State,
    judge=judge,
    explains=("diverged", "gradient-spike"),
)
