"""The state of nonfinite-gradient, and the episode of bad steps that its finding is about."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.framework.gradient_frontier import Origin
from ammeter.verdicts.framework.lifecycle import Lifecycle
from ammeter.verdicts.framework.origins.origin_event import MAX_NAME_CHARS, NonfiniteOrigin
from ammeter.verdicts.framework.scale_limits import MAX_ACCIDENTAL_SKIPS
from ammeter.verdicts.nonfinite.headroom import Headroom

OFTEN_SKIPS, WITHIN_STEPS = 3, 10
"""Bad steps within so many steps that raise the severity to `page`. Two in a row do so too. It does not matter whether
they were skipped."""

MAX_READ_LATE_STEPS = 10
"""Steps after which weights that become bad are no effect of gradients after which other weights were read finite."""


MAX_HARMLESS_ABSMAX = 64.0
"""Gradients that entered a backward pass and are below it do not overflow there: they are 1024 times below the limit of
float16."""

MAX_FUNCTIONS = 3
"""Functions that a finding names."""

PROOFS = ("undefined", "rounded", "kernel", "differs")
"""Answers of a backward pass that ran again which no lower loss scale changes."""


class OwnFunction(msgspec.Struct, frozen=True, array_like=True):
    """An autograd.Function of the program, and the line of its backward()."""

    name: str
    line: str = ""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    headroom: Headroom = Headroom()
    first_skip: int = -1
    series: int = 0
    unexpected_skips: int = 0
    """`first_skip`: first skipped step in a row. `series`: number of them. `unexpected_skips`: those at a scale that
    had worked."""
    pending_step: int = -1
    """A bad step located in one tensor, or with an Inf despite headroom. It becomes a finding if the run recovers;
    otherwise scale-collapse reports it."""
    nan_overflows: bool = False
    """Whether NaN without Inf is no evidence against an overflow in this run. That is so if a scale that was too high
    gave such NaN, or if update() is called between two optimizers, because the Inf may be in gradients of the second
    one."""
    scale: float = math.nan
    recent: tuple[int, ...] = ()
    bad: int = 0
    applied: int = 0
    page: bool = False
    finite: int = 0
    headroom_bits: float = 0.0
    frontier: Origin = Origin()
    lowest: float = math.inf
    """Lowest scale of a failed step, in the present row of skips or the episode."""
    after: float = math.nan
    """Scale at which the next step was applied."""
    loss_unread: bool = False
    """`loss_unread`: a bad step's loss was not measured. `step_unknown`: the agent did not see if the optimizer
    stepped."""
    step_unknown: bool = False
    scaled: bool = False
    """Whether a scaler was in use in a bad step that was applied nevertheless."""
    partly_applied: int = 0
    """Bad steps that the scaler skipped for one optimizer and not for another."""
    weight: str = ""
    """A weight with NaN or Inf that was read after a bad step was applied."""
    origin: NonfiniteOrigin = NonfiniteOrigin()
    """The module whose backward pass turned finite gradients into NaN or Inf, from hooks."""
    own_scaled: bool = False
    """Whether the program scales its loss itself, and so skips steps itself."""
    doubtful_step: int = -1
    doubtful: Origin = Origin()
    """The first bad step of such a program in a row that was applied, and its frontier. The row may contain a step that
    the program skipped and the next one; only a bad weight proves that the gradients were applied."""
    last_skip: int = -1
    """`last_skip`: the last skipped step. `uncounted`: bad steps after the last one of the open finding."""
    uncounted: int = 0
    ended: str = ""
    """How the program ended in the bad step; empty for a step that was completed."""
    failed_scale: float = math.inf
    """Lowest scale of a skipped step of a program that clips its gradients before they are read."""
    worked: float = 0.0
    """Scale of the last applied step before the bad ones; 0 if unknown. `scale` is that of a bad step."""
    several: bool = False
    """Whether the run has several scalers. Rows have the smallest scale, which may not be that of the bad step."""
    functions: tuple[OwnFunction, ...] = ()
    """Those between the finite and the non-finite gradients of the first bad step."""
    finite_before: int = -1
    """The last bad step in which this rank's gradients were read before their reduction and were finite."""
    of_ranks: bool = False
    """Whether the run has other ranks, whose gradients may be part of these, with a scale of their own."""


def with_scaler(state: State, data: dict[str, Any]) -> State:
    """Stores what the event about a new scaler contains."""
    several = state.several or bool(data.get("scaler"))
    return replace(state, own_scaled=state.own_scaled or bool(data.get("own")), several=several)


def with_functions(state: State, data: dict[str, Any]) -> State:
    """Stores the Functions that can have made the NaN of the step whose frontier is known."""
    if not state.opened.active or state.functions or data.get("bad_step") != state.frontier.step:
        return state
    given = [entry for entry in data.get("functions") or () if isinstance(entry, dict)][:MAX_FUNCTIONS]
    names = ((str(entry.get("name") or ""), str(entry.get("line") or "")) for entry in given)
    functions = (OwnFunction(name[:MAX_NAME_CHARS], line[:MAX_NAME_CHARS]) for name, line in names if name)
    return replace(state, functions=tuple(functions))


def open_episode(state: State, step: int, frontier: Origin, unprotected: bool, certain_at: int | None = None) -> State:
    """Opens or extends the finding.

    Args:
        state: The state so far.
        step: The bad step.
        frontier: Its frontier of non-finite gradients.
        unprotected: Whether the step was applied.
        certain_at: The later step at which the finding became certain, if there is one.
    """
    fresh = not state.opened.active
    recent = (() if fresh else state.recent) + (step,)
    recent = tuple(bad for bad in recent if step - bad < WITHIN_STEPS)[-OFTEN_SKIPS:]
    often = (
        len(recent) >= OFTEN_SKIPS
        or (len(recent) > 1 and recent[-2] == step - 1)
        or state.series >= MAX_ACCIDENTAL_SKIPS
    )
    opened = state.opened.at(state.first_skip if state.series else step, step)
    if fresh:
        state = replace(state, after=math.nan, weight="", origin=NonfiniteOrigin(), functions=(), scaled=False)
        if not state.series:
            state = replace(state, lowest=math.inf, loss_unread=False, step_unknown=False, partly_applied=0)
    return replace(
        state,
        opened=replace(opened, step=certain_at) if fresh and certain_at is not None else opened,
        recent=recent,
        bad=max(1, state.series) if fresh else state.bad + state.uncounted + 1,
        uncounted=0,
        applied=int(unprotected) if fresh else state.applied + unprotected,
        worked=state.headroom.applied_scale if fresh else state.worked,
        page=unprotected or often or (state.page and not fresh),
        finite=0,
        frontier=frontier if fresh or not state.frontier.count else state.frontier,
    )


def with_doubtful_step(state: State, step: int, frontier: Origin) -> State:
    """Stores a bad step of which it is uncertain whether the bad gradients were applied.

    A program with a loss scale of its own checks its gradients itself: the row of an applied step may also contain a
    step that it skipped before. After an update between two optimizers, the row of the first optimizer's step also
    contains the gradients of the second, which is skipped in the next row. If the weights that were read after the
    step are finite, the program repairs its gradients before the optimizer uses them, unless a further weight is bad.
    """
    if state.weight or (state.doubtful_step >= 0 and keeps_doubts(state)):
        return state
    return replace(state, doubtful_step=step, doubtful=frontier)


def keeps_doubts(state: State) -> bool:
    """Whether a bad weight proves at any later step that the doubtful step was applied."""
    return state.own_scaled or state.nan_overflows


def is_no_overflow(origin: NonfiniteOrigin) -> bool:
    """Whether the origin of bad gradients proves that the loss scale is not the reason."""
    if origin.trial:
        return origin.trial in PROOFS
    return 0 <= origin.absmax < MAX_HARMLESS_ABSMAX and origin.nans > 0 and not origin.infs
