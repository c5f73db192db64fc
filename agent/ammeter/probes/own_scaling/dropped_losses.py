"""Finds steps that a program skips because their loss is NaN or Inf, without a call that reads their gradients."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from ammeter.tensors.hidden_reads import has_numbers, unseen
from ammeter.torch_hooks.gradients import gradient

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.losses import BackwardLoss
    from ammeter.recording.own_scale import Reset
    from ammeter.recording.row import Row

MAX_USUAL_STEPS = 16
"""Steps that show what is usual. A program may have two kinds of steps in turn, and change its accumulation."""

MIN_ADJACENT_STEPS = 8
"""Steps without a gap in which an optimizer has stepped each time, so that it does not take turns with another one. A
critic is trained up to five times for each step of its generator. Steps on the fast path are gaps, and rows that are
written later are not known yet."""


class _Usual(NamedTuple):
    """A step with finite losses.

    Attributes:
        number: its number in the run.
        passes: its backward passes.
        stepped: ids of the optimizers that stepped.
    """

    number: int
    passes: int
    stepped: frozenset[int]


class DroppedLosses:
    """The steps of one run whose loss is NaN or Inf and which the program gives up.

    Such a step has as many backward passes as others, no optimizer steps, and the next one begins without its
    gradients. A step in which a micro-batch is NaN goes on with its gradients, and so does one with a second backward
    pass, such as that of sharpness-aware minimization.
    """

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._usual: deque[_Usual] = deque(maxlen=MAX_USUAL_STEPS)
        self._last = self._gap = -1
        """The last step that was seen, and the last one before it that was not."""
        self._zeroed: dict[int, tuple[int, int]] = {}
        """By id of the optimizer: the step of its last zero_grad(), and the number of backward passes until then."""

    def finish(self, row: Row) -> None:
        self._gap = self._gap if row.step == self._last + 1 else row.step - 1
        self._last = row.step
        losses = row.raw.get("losses", ())
        if losses and row.stepped and not row.skipped and all(math.isfinite(loss.number()) for loss in losses):
            self._usual.append(_Usual(row.step, row.raw.get("micro_batches", 0), row.stepped))

    def given_up(self, reset: Reset) -> Sequence[torch.optim.Optimizer]:
        """Returns the optimizers that do not step because of such a loss."""
        row = self._session.row
        losses = row.raw.get("losses")
        if not losses or not self._usual:
            return []
        passes = row.raw.get("micro_batches", 0)
        if reset.optimizer is not None:
            self._zeroed[id(reset.optimizer)] = row.step, passes
            return []
        if reset.closes:
            always = self._always_step()
            return [optimizer for optimizer in self._without_step(row, losses) if id(optimizer) in always]
        if passes < max(1, *(usual.passes for usual in self._usual)):  # the first backward passes may be unobserved
            return []
        left = self._without_step(row, losses)
        if self._session.losses.are_of_backward:
            return left if all(self._is_reset(optimizer) for optimizer in left) else []
        return [] if reset.losses is None else left  # the program holds its gradients itself

    def _always_step(self) -> frozenset[int]:
        """Returns the ids of the optimizers that have stepped in each of the last steps."""
        adjacent = [usual.stepped for usual in self._usual if usual.number > self._gap]
        return frozenset.intersection(*adjacent) if len(adjacent) >= MIN_ADJACENT_STEPS else frozenset()

    def _without_step(self, row: Row, losses: Sequence[BackwardLoss]) -> list[torch.optim.Optimizer]:
        """Returns the optimizers that such a loss has given gradients, and none of which has stepped since."""
        optimizers, attempts = list(self._session.watched.optimizers), row.raw.get("attempts", ())
        found: set[int] = set()
        for loss in losses:
            if _is_bad(loss):
                touched = frozenset(map(id, optimizers)) if loss.touched is None else loss.touched
                if touched.isdisjoint(attempts[loss.attempts :]):
                    found |= touched
        found -= row.stepped | row.skipped
        return [optimizer for optimizer in optimizers if id(optimizer) in found]

    def _is_reset(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the optimizer has no gradients, or zeros. On a device, zeros are known only from zero_grad()."""
        row = self._session.row
        if self._zeroed.get(id(optimizer)) == (row.step, row.raw.get("micro_batches", 0)):
            return True
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        grads = [grad for parameter in parameters if (grad := gradient(parameter)) is not None]
        if not all(grad.is_cpu and grad.layout is torch.strided and has_numbers(grad) for grad in grads):
            return False
        return unseen(lambda: not any(bool(grad.any()) for grad in grads), grads)


def _is_bad(loss: BackwardLoss) -> bool:
    """Whether a loss is NaN or Inf, if the host knows it. From a device it has arrived if the program waited for it."""
    return all(value.ready() for value in loss.values) and not math.isfinite(loss.number())
