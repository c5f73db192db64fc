"""What an optimizer's step() calls inside of itself: the closure, as of L-BFGS and Lightning, and its evaluations."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch


class Closure:
    """The closure of the step() that runs, and of the last one that ran.

    The step is of the loss and the gradients of the first evaluation, which is what step() returns. Later ones, as of
    L-BFGS, are of weights that the optimizer has moved meanwhile.
    """

    def __init__(self) -> None:
        self.optimizer: int | None = None
        self.evaluated = False
        """Whether backward() was called in it."""
        self.again = False
        """Whether the optimizer has moved the weights and evaluated it once more."""
        self._stepping: weakref.ref[torch.optim.Optimizer] | None = None
        self._weights: int | None = None
        self._gradient: tuple[int, int] | None = None

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """step(closure) begins."""
        self.optimizer, self.evaluated, self.again, self._gradient = id(optimizer), False, False, None
        self._stepping = weakref.ref(optimizer)
        self._weights = self._version()

    def end(self) -> None:
        self.optimizer = None

    def evaluates(self) -> None:
        """backward() is called in it."""
        self.again = self.again or (self.evaluated and self._version() != self._weights)
        self.evaluated = True

    def went_back(self) -> None:
        """backward() has returned: these are the gradients, unless more are added."""
        if self.optimizer is not None and not self.again:
            self._gradient = self._state()

    def untouched(self) -> bool:
        """Whether the gradients are those that the only evaluation has left: nobody has clipped or changed them since,
        as far as one of them shows."""
        return self.evaluated and not self.again and self._gradient is not None and self._gradient == self._state()

    def _state(self) -> tuple[int, int] | None:
        """Of the first gradient that there is."""
        found = next((each.grad for each in self._parameters() if each.grad is not None), None)
        return None if found is None else (id(found), version(found))

    def _version(self) -> int | None:
        """Of the first weight: another one where the optimizer has moved it."""
        first = next(self._parameters(), None)
        return None if first is None else version(first)

    def _parameters(self) -> Iterator[torch.Tensor]:
        optimizer = self._stepping() if self._stepping else None
        groups = [] if optimizer is None else optimizer.param_groups
        return (each for group in groups for each in group["params"])


def closure_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The closure that an optimizer's step() was called with; None where there is none."""
    return args[1] if len(args) > 1 else kwargs.get("closure")


def version(tensor: torch.Tensor) -> int:
    """How often a tensor was changed in place; 0 of one that was made in inference mode, which does not count."""
    try:
        return tensor._version
    except RuntimeError:
        return 0
