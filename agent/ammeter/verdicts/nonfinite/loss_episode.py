"""What nonfinite-loss knows of a series of losses with NaN or Inf."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.framework.gradient_frontier import Origin
from ammeter.verdicts.framework.lifecycle import Lifecycle
from ammeter.verdicts.framework.origins.origin_event import NonfiniteOrigin

Gradients = Literal["finite", "broken", "unread"]


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    bad: int = 0
    skipped: int = 0
    applied: int = 0
    at_risk: bool = False
    """`at_risk`: a step was applied whose gradients were not known to be finite. `unread`: nor were they known to be
    non-finite."""
    unread: bool = False
    value: float = math.nan
    finite: int = 0
    scaled: bool = False
    frontier: Origin = Origin()
    origin: NonfiniteOrigin = NonfiniteOrigin()
    weight_before: str = ""
    """A weight that was non-finite before this series. No step of the series was applied."""
    weight_after: str = ""
    """A non-finite weight that was read after a step of this series was applied."""
    partly_applied: int = 0
    """Steps of this series that the scaler skipped for one optimizer and not for another."""
    gradient_nonzero: bool = False
    """Whether a gradient of an applied step was read and was not zero."""
    column: str = ""
    """The name of the loss, if the run has several."""
    has_gradients: bool = False
    """Whether the loss contains gradients, one of which was not finite in a step that the scaler skipped."""
    ended: str = ""
    """How the program ended in the step with this loss; empty for a step that was completed."""
    own_scaled: bool = False
    """Whether the program has a loss scale of its own. The row of a step that it applied may also contain an earlier
    one that it skipped."""
    uncertain: int = 0
    """Steps of this series that were skipped or applied: such a program, or one that drops a step whose row then also
    contains the next one."""
    passes: float = math.inf
    """Backward passes of the last applied step with a finite loss."""


def with_bad_loss(
    state: State, step: int, loss: float, skipped: bool, applied: bool, gradients: Gradients, passes: float = 1.0
) -> State:
    """Adds a step with such a loss, to a new series if none is open."""
    if not state.opened.active:
        kept = {name: getattr(state, name) for name in ("weight_before", "has_gradients", "own_scaled", "passes")}
        state = State(state.opened, value=loss, **kept)
    partly_applied, applied = applied and skipped, applied and not skipped
    may_be_unscaled, may_be_two = state.own_scaled and gradients != "finite", passes > state.passes
    is_uncertain = applied and (may_be_unscaled or (may_be_two and gradients != "broken"))
    applied = applied and not is_uncertain
    risky = applied and gradients != "finite"
    return replace(
        state,
        opened=state.opened.at(step, step),
        bad=state.bad + 1,
        skipped=state.skipped + skipped,
        applied=state.applied + applied,
        partly_applied=state.partly_applied + partly_applied,
        at_risk=state.at_risk or risky,
        uncertain=state.uncertain + is_uncertain,
        unread=gradients != "broken" and (state.unread if state.at_risk else risky),
        finite=0,
    )
