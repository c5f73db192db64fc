"""Finds forward passes that a program gives up because their loss has no target, before it calls backward().

Such as `if torch.isnan(loss): continue`. When the next forward pass begins, the loss is still a variable of the
program, and its graph is whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.targets.counts import lacks_targets, target_counts
from ammeter.tensors.hidden_reads import has_numbers, unseen
from ammeter.tensors.live_objects import live_objects

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext

MIN_REGULAR_PASSES = 4
MIN_REGULAR_SHARE = 0.2
"""Backward passes that follow one forward pass each, and their share, which show that further forward passes are no
part of the program's steps, as those of contrastive losses are."""

MAX_FIRST_SEARCHES = 4
"""Given up passes whose loss is searched, before only the 8th, 16th ... is: a search takes up to 50 ms."""


class GivenUpPasses:
    """The forward passes of one run in training mode.

    Attributes:
        passes: those that were observed.
        given_up: those that another one followed, in the same step, without a backward pass.
        searched: those of them whose loss was searched.
    """

    def __init__(self, session: ProbeContext, found: Callable[[float], None]) -> None:
        """Creates the search.

        Args:
            found: receives each loss without targets that was found.
        """
        self.passes = self.given_up = self.searched = 0
        self._session = session
        self._found = found
        self._since_backward = self._regular = self._irregular = 0
        self._step = -1

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        return [self._session.forward.subscribe(trains=guard(self._begins))]

    def backward(self) -> None:
        """Notes a backward pass."""
        self._regular += self._since_backward == 1
        self._irregular += self._since_backward > 1
        self._since_backward = 0

    def _begins(self, *_: Any) -> None:
        step = self._session.row.step
        if self._since_backward and step == self._step and self._is_regular():
            self._since_backward = 0
            self._give_up()
        self._since_backward = self._since_backward + 1 if step == self._step else 1
        self._step = step
        self.passes += 1

    def _is_regular(self) -> bool:
        share = MIN_REGULAR_SHARE * (self._regular + self._irregular)
        return self._regular >= max(MIN_REGULAR_PASSES, share)

    def _give_up(self) -> None:
        self.given_up += 1
        if self.given_up > MAX_FIRST_SEARCHES and self.given_up & (self.given_up - 1):
            return
        self.searched += 1
        loss = unseen(_loss_without_targets, ())
        if loss is not None:
            self._found(loss)


def _loss_without_targets() -> float | None:
    """Returns the newest loss that has no target and whose graph is whole."""
    for tensor in reversed(live_objects(torch.Tensor)):
        number = _zero_or_nonfinite(tensor)
        if number is not None and lacks_targets(target_counts(tensor)):
            return number
    return None


def _zero_or_nonfinite(tensor: torch.Tensor) -> float | None:
    """Returns the number of a loss that is zero, NaN or Inf, if it can be read without waiting for a device."""
    if type(tensor) is not torch.Tensor or tensor.grad_fn is None or tensor.numel() != 1:
        return None
    if not tensor.is_floating_point() or not has_numbers(tensor):
        return None
    if not (tensor.is_cpu or (tensor.is_cuda and torch.cuda.current_stream(tensor.device).query())):
        return None
    number = float(tensor.detach())
    return None if number and math.isfinite(number) else number
