"""Finds steps that a program skips itself: it gives up gradients with NaN or Inf, and their optimizer does not step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ammeter.probes.own_scaling.dropped_losses import DroppedLosses
from ammeter.recording.loss_shares import Parts, own_scale
from ammeter.tensors.hidden_reads import unseen
from ammeter.torch_hooks.gradients import gradient
from ammeter.torch_hooks.loss_graph import summands

if TYPE_CHECKING:
    from ammeter.probes.own_scaling.samples import Samples
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.own_scale import Reset


class _Moment(NamedTuple):
    """The gradients of an optimizer at one moment.

    Attributes:
        step: the step.
        state: identity and version of sampled gradients.
        scale: the scale of the last backward pass, 0 if unknown.
    """

    step: int
    state: tuple[int, ...]
    scale: float = 0.0


class OwnSkips:
    """The gradients with NaN or Inf of one run, as far as the host knows them."""

    def __init__(self, session: ProbeContext, samples: Samples) -> None:
        self._session = session
        self._samples = samples
        self._dropped = DroppedLosses(session)
        self.finish = self._dropped.finish
        self._passed: dict[int, _Moment] = {}
        self._bad: dict[int, _Moment] = {}
        """By id of the optimizer: the last gradients after a backward pass, and the last ones with NaN or Inf."""
        self._reset_at = -1, -1
        """The step in which gradients were given up at a reset, and its number of backward passes until then."""

    def scale_of(self, parts: Parts) -> float:
        """Returns the scale that a loss is multiplied by, 0 for none; until it is proven, a factor that may be one."""
        own = self._session.own_scale
        return own.factor(parts) if own.value else own_scale(parts)

    def passed(self, optimizer: torch.optim.Optimizer, scale: float) -> None:
        """Records the gradients after a backward pass of a program that may have a scaler of its own."""
        self._passed[id(optimizer)] = self._now(optimizer, scale)

    def overflowed(self, optimizer: torch.optim.Optimizer) -> None:
        """Records that gradients contain NaN or Inf, as a sample or a reading of all of them shows."""
        self._bad[id(optimizer)] = self._now(optimizer)

    def given_up(self, reset: Reset) -> list[torch.optim.Optimizer]:
        """Returns the optimizers whose gradients the program has given up in the open step.

        Two optimizers that are reset one after the other are given up together.
        """
        if self._session.watched.by_several_threads:  # another thread may train some of them now
            return []
        dropped = self._dropped.given_up(reset)
        return list(dropped) if dropped or reset.closes else self._overflowing(reset)

    def _overflowing(self, reset: Reset) -> list[torch.optim.Optimizer]:
        """Returns those whose gradients contain NaN or Inf, or may do so."""
        if reset.optimizer is not None:
            row = self._session.row
            moment = row.step, row.raw.get("micro_batches", 0)
            if moment != self._reset_at and not self._is_bad(reset.optimizer):
                return []
            self._reset_at = moment
            return [reset.optimizer]
        if not self._bad and not self._passed:
            return []
        return [
            optimizer
            for optimizer in self._session.watched.optimizers
            if self._has_changed(optimizer, self._bad) or self._falls(optimizer, reset.losses)
        ]

    def _is_bad(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the gradients contain NaN or Inf.

        If this is not known, all gradients are read, if the program may have a scaler of its own: it usually discards
        gradients because they overflow.
        """
        return self._is_of_step(optimizer, self._bad) or (
            self._is_of_step(optimizer, self._passed) and has_nonfinite(optimizer)
        )

    def _is_of_step(self, optimizer: torch.optim.Optimizer, moments: dict[int, _Moment]) -> bool:
        moment = moments.get(id(optimizer))
        return moment is not None and moment.step == self._session.row.step

    def _has_changed(self, optimizer: torch.optim.Optimizer, moments: dict[int, _Moment]) -> bool:
        """Whether gradients of the open step are no longer as they were."""
        return self._is_of_step(optimizer, moments) and self._samples.state(optimizer) != moments[id(optimizer)].state

    def _falls(self, optimizer: torch.optim.Optimizer, losses: Any) -> bool:
        """Whether the next loss has a lower scale, and the parameters no longer hold the gradients of the last one.

        The results of torch.autograd.grad() are no gradients of parameters before the program assigns them.
        """
        if not isinstance(losses, torch.Tensor) or not self._is_of_step(optimizer, self._passed):
            return False
        last = self._passed[id(optimizer)]
        if last.state and not self._has_changed(optimizer, self._passed):
            return False
        return 0 < self.scale_of(summands(losses)) < last.scale

    def _now(self, optimizer: torch.optim.Optimizer, scale: float = 0.0) -> _Moment:
        return _Moment(self._session.row.step, self._samples.state(optimizer), scale)


def has_nonfinite(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a gradient on the host contains NaN or Inf."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    grads = [grad for parameter in parameters if (grad := gradient(parameter)) is not None and grad.is_cpu]
    return unseen(lambda: any(not bool(torch.isfinite(grad).all()) for grad in grads), grads)
