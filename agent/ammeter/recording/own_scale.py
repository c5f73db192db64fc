"""The loss scale that a program applies itself, without a GradScaler, and the steps that it skips itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ammeter.recording.loss_shares import Parts, factors

if TYPE_CHECKING:
    import torch

REPORTED = "scale_reported"
"""Entry in the values of a row whose scale a framework's scaler reports: nothing of it needs to be proven. DeepSpeed
then steps each parameter group on its own."""

MAX_CHANGE = 16.0
"""Largest ratio of two consecutive scales. A dynamic scale is halved or doubled, once or a few times in a row."""


class Reset(NamedTuple):
    """A call at which the program may have given up the gradients of the open step.

    Attributes:
        optimizer: the optimizer that resets its gradients with this call; None for any other call.
        losses: the losses of a backward pass that begins with this call.
        closes: the step closes with this call, whether or not all optimizers have stepped.
    """

    optimizer: torch.optim.Optimizer | None = None
    losses: Any = None
    closes: bool = False


class OwnScale:
    """The program's own loss scale, as far as it is proven.

    A factor of the loss is a loss scale if the program divides the gradients by it. Any other factor is a weight.

    Attributes:
        value: the last scale; 0 until the scaler is proven.
        is_hidden: whether the graph of the loss does not show the scale, as with a custom Function.
        overflowed: records that the gradients of an optimizer contain NaN or Inf.
        given_up: returns the optimizers whose gradients the program has given up in the open step.
        overflows: whether the gradients of an optimizer contain NaN or Inf now.
    """

    def __init__(self) -> None:
        self.value = 0.0
        self.is_hidden = False
        self.overflowed: Callable[[torch.optim.Optimizer], None] = _ignore
        self.given_up: Callable[[Reset], list[torch.optim.Optimizer]] = _none
        self.overflows: Callable[[torch.optim.Optimizer], bool] = _never

    def prove(self, scale: float, *, is_hidden: bool = False) -> None:
        self.value, self.is_hidden = scale, is_hidden

    def factor(self, parts: Parts) -> float:
        """Returns the scale that a loss is multiplied by, or 0.

        Of several factors it is the one that follows from the last scale by doubling or halving.
        """
        if not self.value or self.is_hidden:
            return 0.0
        near = [factor for factor in factors(parts) if 1 / MAX_CHANGE <= factor / self.value <= MAX_CHANGE]
        doubled = [factor for factor in near if math.frexp(factor / self.value)[0] == 0.5]
        if doubled:
            return min(doubled, key=lambda factor: abs(math.log2(factor / self.value)))
        return near[0] if len(near) == 1 else 0.0


def _ignore(_: torch.optim.Optimizer) -> None:
    pass


def _never(_: torch.optim.Optimizer) -> bool:
    return False


def _none(_: Reset) -> list[torch.optim.Optimizer]:
    return []
