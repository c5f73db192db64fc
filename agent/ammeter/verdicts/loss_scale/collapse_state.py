"""The state of scale-collapse: the present row of skipped steps, and the collapse that its finding is about."""

from __future__ import annotations

import math

import msgspec

from ammeter.verdicts.framework.gradient_frontier import Origin
from ammeter.verdicts.framework.lifecycle import Lifecycle
from ammeter.verdicts.framework.scale_limits import INVERSE_INFINITE_SCALE


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

    @property
    def constant(self) -> bool:
        """Whether the scale did not change during the collapse."""
        return self.from_scale == self.to_scale

    @property
    def steps_left(self) -> int:
        """Returns the number of skips until the inverse of the scale is infinite.

        The skip at `to_scale` also lowers the scale.
        """
        if self.to_scale <= INVERSE_INFINITE_SCALE:
            return 0
        return max(0, math.ceil((math.log2(self.to_scale) + 128) / -math.log2(self.backoff)) - 1)
