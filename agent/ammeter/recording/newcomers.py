"""Optimizers that the program builds during a run: each is watched from its first use on.

Its construction is observed, so that its first use is known whichever call that is: loading a state, zero_grad(),
unscale_() or step(). An optimizer that existed before watch() and was not passed to it stays unwatched, and so does one
that steps inside backward(), such as one per parameter in a hook: a step of the training is a step after backward().
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ammeter.recording.fast_path import FULL_STEPS_AFTER_FAULT
from ammeter.torch_hooks import call_site, patch
from ammeter.torch_hooks.targets import is_wrapped
from ammeter.torch_hooks.weak_id_set import WeakIdSet

if TYPE_CHECKING:
    from ammeter.recording.session import Session

MAX_FOREIGN_OPTIMIZERS = 8
"""Limit of optimizers with parameters that are new to the run, so that a program that creates one at each step is not
slowed down, and its journal does not grow."""

FindModels = Callable[[torch.optim.Optimizer], list[torch.nn.Module]]


class Newcomers:
    """The optimizers built since the session began.

    Attributes:
        find_models: finds the models of an optimizer with parameters that are new to the run. None if only optimizers
            that train the run's own parameters belong to it, as after watch().
    """

    def __init__(self, session: Session) -> None:
        self.find_models: FindModels | None = None
        self._session = session
        self._built: weakref.WeakKeyDictionary[torch.optim.Optimizer, str] = weakref.WeakKeyDictionary()
        """Optimizer -> line of its construction."""
        self._refused: WeakIdSet[torch.optim.Optimizer] = WeakIdSet(())
        self._trained: set[int] = set()
        """ids of the parameters of the optimizers that are or were watched."""
        self._foreign = 0

    def attach(self, guard: Callable[[Callable[..., None]], Callable[..., None]]) -> list[Any]:
        self._trained.update(*map(_parameters, self._session.watched.optimizers))
        return [patch.method(torch.optim.Optimizer, "__init__", after=guard(self._optimizer_built))]

    def awaits(self, optimizer: Any) -> bool:
        """Whether an optimizer was built during the run and has not been used."""
        return optimizer in self._built

    def admit(self, optimizer: Any) -> bool:
        """Returns whether an optimizer is watched; watches one at its first use if it belongs to this run."""
        watched = self._session.watched
        if optimizer in watched.optimizers:
            return True
        if not isinstance(optimizer, torch.optim.Optimizer) or optimizer in self._refused or patch.inside_backward():
            return False
        line = self._built.pop(optimizer, None)
        if line is None and self.find_models is None:
            return False
        models = self._models(optimizer)
        if models is None:
            self._refused.add(optimizer)
            return False
        self._session.fast_path.leave()
        own = _parameters(optimizer)
        replaces = own <= self._trained
        self._trained |= own
        watched.join(models, optimizer)
        self._session.joined(optimizer, line or "", replaces=replaces)
        return True

    def _optimizer_built(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        """Stores a new optimizer, and leaves the fast path, on which only the first step of one is observed."""
        if patch.inside_backward():
            return
        self._built[args[0]] = call_site.line()
        self._session.fast_path.leave(is_odd=True)
        self._session.fast_path.avoid(FULL_STEPS_AFTER_FAULT)

    def _models(self, optimizer: torch.optim.Optimizer) -> list[torch.nn.Module] | None:
        """Returns the models to add with an optimizer, None if it does not belong to this run."""
        watched = self._session.watched
        if is_wrapped(optimizer, watched.optimizers):
            return None
        known = [watched.knows(parameter) for group in optimizer.param_groups for parameter in group["params"]]
        if not known or not (all(known) or _parameters(optimizer) <= self._present()):
            if self.find_models is not None and self._foreign < MAX_FOREIGN_OPTIMIZERS:
                self._foreign += 1
                return self.find_models(optimizer)
            if self.find_models is not None or not any(known):
                return None
        return []

    def _present(self) -> set[int]:
        """Returns the ids of the parameters that the watched models have now, with those of a part that is new."""
        models = (ref() for ref in self._session.watched.models)
        return {id(parameter) for model in models if model is not None for parameter in model.parameters()}


def _parameters(optimizer: torch.optim.Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
