"""Finds whether a program itself has divided scaled gradients, which then reach the optimizer without the scaler."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ammeter.probes.call_order.sampled_elements import MAX_CHANGE, UNIFORM_SHARE
from ammeter.probes.own_scaling.samples import DeviceSample, Returned, Sample, Samples, is_equal, ratios, typical
from ammeter.recording import returned_losses
from ammeter.tensors import async_copy
from ammeter.tensors.hidden_reads import unseen
from ammeter.torch_hooks import patch

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext

KEY = "gradients_produced"

Optimizers = weakref.WeakKeyDictionary[torch.optim.Optimizer, bool]


class UnscaledByHand:
    """Compares a few elements after backward() with those that are read.

    Gradients that only scalers use are not sampled after their first step. Those on a device are sampled in followed
    steps; in the other steps they are taken for what they were there.
    """

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._samples = Samples()
        self._is_past: Optimizers = weakref.WeakKeyDictionary()
        """Whether an optimizer has stepped without a scaler on gradients of a scaled loss."""
        self._is_divided: Optimizers = weakref.WeakKeyDictionary()
        """Whether its gradients were divided when they were sampled last."""
        self._is_on_host = True
        self._states: dict[int, tuple[int, ...]] = {}

    def before_backward(self) -> None:
        self._states = {id(optimizer): self._state(optimizer) for optimizer in self._sampled()}

    def after_backward(self) -> None:
        """Samples the gradients that backward() has changed."""
        states, self._states = self._states, {}
        for optimizer in self._sampled() if states else ():
            key = id(optimizer)
            if key in states and self._state(optimizer) != states[key]:
                self._session.row.raw.setdefault(KEY, {})[key] = self._read(optimizer)

    def after_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any], results: Any) -> None:
        """Samples the gradients that torch.autograd.grad() returns to a program that assigns them itself.

        Those of a step with backward() are measurements, such as the norm of the gradient of one loss.
        """
        known = self._session.row.raw.get(KEY, {})
        optimizers = [optimizer for optimizer in self._sampled() if id(optimizer) not in known]
        if not optimizers or returned_losses.loss_of(args, kwargs, self._session.watched) is None:
            return
        returned = returned_losses.gradients_in(args, kwargs, results)
        for optimizer in optimizers if returned else ():
            self._session.row.raw.setdefault(KEY, {})[id(optimizer)] = self._read(optimizer, returned)

    def leave_to_scaler(self, optimizer: torch.optim.Optimizer) -> None:
        """Records that the scaler divides the gradients of this step."""
        self._is_past.setdefault(optimizer, False)
        self._is_divided.pop(optimizer, None)
        self._session.row.raw.get(KEY, {}).pop(id(optimizer), None)

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        row = self._session.row
        if id(optimizer) in row.scaler_used:
            self.leave_to_scaler(optimizer)
        elif row.raw.get("scaled"):
            self._is_past[optimizer] = True

    def left_of(self, scale: async_copy.Transfer, optimizer: torch.optim.Optimizer) -> async_copy.Transfer:
        """Returns the scale that the gradients are multiplied by now, after changes of the program."""
        produced = self._session.row.raw.get(KEY, {}).get(id(optimizer))
        received = None if produced is None else self._read(optimizer)
        known = self._is_divided.get(optimizer, False)
        if produced is None or received is None:
            return async_copy.number(1.0) if known else scale
        owner = weakref.ref(optimizer)
        return ScaleLeft(scale, produced, received, lambda divided: self._learn(owner(), divided, known))

    def _learn(self, optimizer: torch.optim.Optimizer | None, divided: bool | None, known: bool) -> bool:
        if divided is not None and optimizer is not None:
            self._is_divided[optimizer] = divided
        return known if divided is None else divided

    def _sampled(self) -> list[torch.optim.Optimizer]:
        session = self._session
        if not session.row.raw.get("scaled") or session.watched.by_several_threads or patch.inside_backward():
            return []
        if not (session.follows or self._is_on_host):
            return []
        return [optimizer for optimizer in session.watched.optimizers if self._is_past.get(optimizer, True)]

    def _state(self, optimizer: torch.optim.Optimizer) -> tuple[int, ...]:
        return unseen(lambda: self._samples.state(optimizer), ())

    def _read(self, optimizer: torch.optim.Optimizer, returned: Returned | None = None) -> Sample | None:
        sample = unseen(lambda: self._samples.read(optimizer, returned), ())
        if isinstance(sample, DeviceSample):
            self._is_on_host = False
            self._session.row.wait_for(sample.transfer)
        return sample


class ScaleLeft:
    """The scale in gradients, or 1 if they are divided; a transfer that arrives with both samples.

    Args:
        judged: receives whether the gradients are divided, None if the samples do not show it; returns what to take
            them for.
    """

    def __init__(
        self, scale: async_copy.Transfer, produced: Sample, received: Sample, judged: Callable[[bool | None], bool]
    ) -> None:
        self._scale, self._produced, self._received, self._judged = scale, produced, received, judged
        samples = [sample.transfer for sample in (produced, received) if isinstance(sample, DeviceSample)]
        self._parts = [scale, *samples]
        self._number: float | None = None
        self.on_host = all(part.on_host for part in self._parts)

    def ready(self) -> bool:
        return all(part.ready() for part in self._parts)

    def array(self) -> async_copy.Array:
        return np.array([self.number()], np.float32)

    def number(self) -> float:
        if self._number is None:
            scale = self._scale.number()
            divided = self._judged(is_divided(self._produced, self._received, scale))
            self._number = 1.0 if divided else scale
        return self._number


def is_divided(produced: Sample, received: Sample, scale: float) -> bool | None:
    """Whether elements were divided by the scale, perhaps with a clip or noise after it; None if nothing shows it."""
    found = ratios(produced, received)
    if found is None:
        return None
    limit, ratio = 1 / math.sqrt(max(scale, 1.0)), typical(found)
    if is_equal(found, ratio, UNIFORM_SHARE):
        return ratio < limit
    # A change by several factors, such as an average with other ranks, is none by more than MAX_CHANGE; a division is,
    # even if noise follows it that is larger than many of the elements.
    known = [place for place, one in enumerate(found) if one == one]
    before, after = (sum([abs(sample.values[place]) for place in known]) for sample in (produced, received))
    return after < max(limit, 1 / MAX_CHANGE) * before
