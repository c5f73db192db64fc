"""Finds steps of optimizers that run none of torch's hooks, by the version counters of weights and moments.

An optimizer with an update method of its own, or with a step() that bypasses torch's wrapper, runs no hook. Its step
shows at the next call of the program: all sampled weights, or their moments, have other versions than backward() left.
Optimizers whose hooks run are not examined.
"""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from ammeter.torch_hooks import call_site, optimizer_steps
from ammeter.torch_hooks.closures import version
from ammeter.torch_hooks.weak_id_set import WeakIdSet

if TYPE_CHECKING:
    from ammeter.recording.session import Session

State = tuple[int, ...]
States = list[tuple[weakref.ref[torch.Tensor], State]]


class UnobservedSteps:
    """The optimizers of a session whose steps no hook has reported.

    Attributes:
        is_needed: whether any watched optimizer may step without hooks.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._observed: WeakIdSet[torch.optim.Optimizer] = WeakIdSet(())
        self._noted: weakref.WeakKeyDictionary[torch.optim.Optimizer, States] = weakref.WeakKeyDictionary()
        self._backwards: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        """Optimizer -> backward passes before its last step, for optimizers that were found here."""
        self._replaying = False
        self.is_needed = True

    def joined(self) -> None:
        """Records that an optimizer is watched from now on."""
        self.is_needed = True

    def observed(self, optimizer: torch.optim.Optimizer) -> None:
        """Records that a hook has reported a step of an optimizer, watched or not.

        It explains the changes of its weights, also for another optimizer that has them, such as a wrapper.
        """
        if self._replaying or optimizer in self._observed:
            return
        weights = _parameters(optimizer)
        for other in (optimizer, *self._session.watched.optimizers):
            if other is optimizer or not weights.isdisjoint(_parameters(other)):
                self._observed.add(other)
                self._noted.pop(other, None)
        self.is_needed = any(other not in self._observed for other in self._session.watched.optimizers)

    def after_backward(self) -> None:
        """Notes the states of weights; reads a step whose gradients are probably complete."""
        backwards = self._session.row.raw.get("micro_batches", 1)
        for optimizer in self._session.watched.optimizers:
            if optimizer not in self._observed:
                self._noted[optimizer] = _sampled(optimizer)
                if self._backwards.get(optimizer) == backwards:
                    optimizer_steps.replay_early(optimizer)

    def find(self, *, has_line: bool) -> None:
        """Replays the steps since the last backward().

        Args:
            has_line: whether the program makes the step on the line that is running now.
        """
        for optimizer, states in list(self._noted.items()):
            if states and all(_is_changed(optimizer, *noted) for noted in states):
                del self._noted[optimizer]
                self._replay(optimizer, has_line)

    def _replay(self, optimizer: torch.optim.Optimizer, has_line: bool) -> None:
        session = self._session
        session.fast_path.disable()
        session.fast_path.leave()
        self._backwards[optimizer] = session.row.raw.get("micro_batches", 1)
        self._replaying = True
        try:
            with nullcontext() if has_line else call_site.unknown():
                optimizer_steps.replay_late(optimizer)
        finally:
            self._replaying = False


def _parameters(optimizer: torch.optim.Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def _sampled(optimizer: torch.optim.Optimizer) -> States:
    """The states of the first, middle and last weight that has a gradient."""
    trained = [
        parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.grad is not None
    ]
    chosen = {id(trained[at]): trained[at] for at in (0, len(trained) // 2, -1)} if trained else {}
    return [(weakref.ref(parameter), _state(optimizer, parameter)) for parameter in chosen.values()]


def _is_changed(optimizer: torch.optim.Optimizer, ref: weakref.ref[torch.Tensor], noted: State) -> bool:
    weight = ref()
    return weight is not None and _state(optimizer, weight) != noted


def _state(optimizer: torch.optim.Optimizer, weight: torch.Tensor) -> State:
    """The versions of a weight and of its moments; fused kernels change no version of a weight."""
    moments: Any = optimizer.state.get(weight, {})
    values = moments.values() if isinstance(moments, dict) else ()
    versions = (version(value) for value in values if isinstance(value, torch.Tensor))
    return version(weight), len(values), *versions
