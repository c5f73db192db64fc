"""The state of scale-collapse: the present row of skipped steps, and the collapse that its finding is about."""

from __future__ import annotations

import math

import msgspec

from ammeter.verdicts.framework.gradient_frontier import Origin
from ammeter.verdicts.framework.learning_rates import Rates
from ammeter.verdicts.framework.lifecycle import Lifecycle
from ammeter.verdicts.framework.scale_limits import INVERSE_INFINITE_SCALE, MIN_USEFUL_SCALE


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    applied_scale: float = 0.0
    """Scale of the last applied step."""
    first_skip: int = -1
    skips: int = 0
    unexpected_skips: int = 0
    """`skips`: skipped steps in a row. `unexpected_skips`: those of them at a scale that had worked."""
    first_scale: float = 0.0
    last_scale: float = 0.0
    backoff: float = 0.5
    applied: int = 0
    frontier: Origin = Origin()
    from_scale: float = 0.0
    to_scale: float = 0.0
    had_been_applied: bool = False
    lost_steps: int = 0
    weights_nonfinite: int = -1
    """Last step with a report of NaN or Inf in the weights. Skipping steps has then not protected the weights."""
    good_scale: float = 0.0
    """The first scale of this collapse that had worked before."""
    highest: float = 0.0
    """Highest scale of an applied step so far."""
    lowest: float = math.inf
    """Lowest scale of the skipped steps of this collapse."""
    partly_applied: int = 0
    """Number of these steps that another optimizer applied."""
    resumed: int = -1
    """First applied step after the collapse. `resumed_scale` is its scale."""
    resumed_scale: float = math.nan
    own: bool = False
    """Whether the program scales its loss itself, without a GradScaler."""
    loss_level: float = 0.0
    """Largest |loss| of an applied step so far."""
    loss_rise: float = 0.0
    """Doublings of that level that the losses of the present row of skipped steps reach."""
    row_partly_applied: int = 0
    row_frontier: Origin = Origin()
    """The same as `partly_applied` and `frontier` for a row of skipped steps that is no collapse so far."""
    applied_after: int = 0
    """Steps of this collapse that were applied. `applied_between`: those of them before its last skipped step."""
    applied_between: int = 0
    between_step: int = -1
    """The first of these. `between_scale` is its scale."""
    between_scale: float = math.nan
    several: bool = False
    """Whether the run has several scalers. Rows have the smallest scale, which may not be that of the skipped steps."""
    rates: Rates = Rates()

    @property
    def constant(self) -> bool:
        """Whether the scale was the same in all skipped steps of the collapse."""
        return self.from_scale == self.to_scale == self.lowest

    @property
    def at_any_scale(self) -> bool:
        """Whether steps failed down to a scale at which nothing is scaled, and none was applied since."""
        is_over = self.resumed >= 0 or self.applied_between > 0
        return not self.several and not is_over and self.lowest <= MIN_USEFUL_SCALE

    @property
    def first_applied(self) -> int:
        """Returns the first step of the collapse that was applied; -1 if there is none."""
        return self.between_step if self.applied_between else self.resumed

    @property
    def first_applied_scale(self) -> float:
        return self.between_scale if self.applied_between else self.resumed_scale

    @property
    def steps_left(self) -> int:
        """Returns the number of skips until the inverse of the scale is infinite.

        The skip at `to_scale` also lowers the scale.
        """
        if self.to_scale <= INVERSE_INFINITE_SCALE:
            return 0
        return max(0, math.ceil((math.log2(self.to_scale) + 128) / -math.log2(self.backoff)) - 1)
