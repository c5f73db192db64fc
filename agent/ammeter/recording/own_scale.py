"""The loss scale that a program applies itself, without a GradScaler."""

from __future__ import annotations

import math
from collections.abc import Callable

from ammeter.recording.loss_shares import Parts, factors

MAX_CHANGE = 16.0
"""Largest ratio of two consecutive scales. A dynamic scale is halved or doubled, once or a few times in a row."""


class OwnScale:
    """The program's own loss scale, as far as it is proven.

    A factor of the loss is a loss scale if the program divides the gradients by it. Any other factor is a weight.

    Attributes:
        value: the last scale; 0 until the scaler is proven.
        is_hidden: whether the graph of the loss does not show the scale, as with a custom Function.
        overflow_step: the step whose gradients are known to contain NaN or Inf.
        gradients_changed: whether the gradients differ from those that the last backward() left.
    """

    def __init__(self) -> None:
        self.value = 0.0
        self.is_hidden = False
        self.overflow_step = -1
        self.gradients_changed: Callable[[], bool] = _never

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


def _never() -> bool:
    return False
