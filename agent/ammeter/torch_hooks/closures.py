"""The closure inside an optimizer's step(), as used by L-BFGS and Lightning, and its evaluations."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch


class Closure:
    """The closure of the current step(), or of the last one.

    The step's loss and gradients are those of the first evaluation, which step() returns. Later evaluations, as in
    L-BFGS, use weights that the optimizer has already changed.
    """

    def __init__(self) -> None:
        self.optimizer: int | None = None
        self.evaluated = False
        """Whether the closure has called backward()."""
        self.reevaluated = False
        """Whether the optimizer has changed the weights and evaluated the closure again."""
        self.is_new_evaluation = False
        """Whether the optimizer has changed the weights between the last two calls of backward()."""
        self._stepping: weakref.ref[torch.optim.Optimizer] | None = None
        self._weights: int | None = None
        self._evaluated_weights: int | None = None
        self._gradient: tuple[int, int] | None = None

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """Records the start of step(closure)."""
        self.optimizer, self.evaluated, self.reevaluated, self._gradient = id(optimizer), False, False, None
        self._stepping = weakref.ref(optimizer)
        self._weights = self._version()
        self.is_new_evaluation = False

    def end(self) -> None:
        self.optimizer = None

    def begin_backward(self) -> None:
        """Records a call of backward() in the closure."""
        weights = self._version()
        self.reevaluated = self.reevaluated or (self.evaluated and weights != self._weights)
        self.is_new_evaluation = self.evaluated and weights != self._evaluated_weights
        self.evaluated, self._evaluated_weights = True, weights

    def end_backward(self) -> None:
        """Records the gradients after backward(); they are final unless more are added."""
        if self.optimizer is not None and not self.reevaluated:
            self._gradient = self._state()

    def untouched(self) -> bool:
        """Whether the gradients are unchanged since the only evaluation, judged by one of them."""
        return (
            self.evaluated and not self.reevaluated and self._gradient is not None and self._gradient == self._state()
        )

    def _state(self) -> tuple[int, int] | None:
        """Returns (id, version) of the first existing gradient."""
        gradient = next((parameter.grad for parameter in self._parameters() if parameter.grad is not None), None)
        return None if gradient is None else (id(gradient), version(gradient))

    def _version(self) -> int | None:
        """Returns the version of the first weight, which changes when the optimizer updates it."""
        first = next(self._parameters(), None)
        return None if first is None else version(first)

    def _parameters(self) -> Iterator[torch.Tensor]:
        optimizer = self._stepping() if self._stepping else None
        groups = [] if optimizer is None else optimizer.param_groups
        return (parameter for group in groups for parameter in group["params"])


def closure_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the closure argument of an optimizer's step(), or None."""
    return args[1] if len(args) > 1 else kwargs.get("closure")


def version(tensor: torch.Tensor) -> int:
    """Returns how often a tensor was changed in place.

    0 for a tensor made in inference mode, which has no version counter.
    """
    try:
        return tensor._version
    except RuntimeError:
        return 0
