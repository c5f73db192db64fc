"""Calls back before and after any optimizer's own step(), through torch's global hooks.

Steps that run none of these hooks are replayed by recording/unobserved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ammeter.torch_hooks.hook_points import Handle, HookPoint

StepCallback = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
"""Receives (optimizer, args, kwargs) of a step() call."""


def before(callback: StepCallback) -> Handle:
    """Calls back before any optimizer's own step(), with the arguments of torch's global pre-hooks."""
    return before_timed(callback, late=callback)


def before_timed(
    callback: StepCallback, *, early: StepCallback | None = None, late: StepCallback | None = None
) -> Handle:
    """Calls back before any optimizer's own step().

    Args:
        callback: called at the step, by torch's hooks.
        early: called for a step without hooks after the backward() that probably completes its gradients.
        late: called for a step without hooks after it has changed the weights.
    """
    return _BEFORE.join((callback, early, late))


def after(callback: StepCallback) -> Handle:
    """Calls back after any optimizer's own step(), including fused optimizers that applied nothing."""
    return _AFTER.join((callback, None, callback))


def replay_early(optimizer: torch.optim.Optimizer) -> None:
    """Calls back before a step without hooks, whose gradients are complete."""
    for call in _BEFORE.calls[1]:
        call(optimizer, (optimizer,), {})


def replay_late(optimizer: torch.optim.Optimizer) -> None:
    """Calls back before and after a step without hooks, which has changed the weights."""
    _BEFORE.is_replaying = True
    try:
        for call in (*_BEFORE.calls[2], *_AFTER.calls[2]):
            call(optimizer, (optimizer,), {})
    finally:
        _BEFORE.is_replaying = False


def is_replayed() -> bool:
    """Whether the step of the present callbacks had no hook, so that only changed weights show it."""
    return _BEFORE.is_replaying


def may_be_by_hand(optimizer: Any) -> bool:
    """Whether the program may have updated the weights itself in the step of the present callbacks.

    The step had no hook, and the optimizer has no state: that its weights have changed is all that shows it. The
    program may have divided each gradient by the loss scale as it used it.
    """
    return _BEFORE.is_replaying and not any(getattr(optimizer, "state", {}).values())


class _Steps(HookPoint):
    """One global torch hook for all subscribers to optimizers' step()."""

    def __init__(self, register: Callable[[Any], Any]) -> None:
        super().__init__(parts=3)
        self._register = register
        self._hook: Any = None
        self.is_replaying = False

    def join(self, subscriber: tuple[Any, ...]) -> Handle:
        handle = super().join(subscriber)
        if self._hook is None:
            self._hook = self._register(self._call)
        return handle

    def leave(self, subscriber: tuple[Any, ...]) -> None:
        super().leave(subscriber)
        if not self.subscribers and self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _call(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for call in self.calls[0]:
            call(optimizer, args, kwargs)


_BEFORE = _Steps(register_optimizer_step_pre_hook)
_AFTER = _Steps(register_optimizer_step_post_hook)
