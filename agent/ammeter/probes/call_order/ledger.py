"""Tracks the state of each optimizer's gradients from calls and tensor versions, without reading numbers.

A gradient that is another tensor, or another version of the same tensor, has changed. The check runs around backward()
and step() on one parameter of each optimizer; in the first steps, periodically and in doubt on all of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.call_order.marks import Mark
from ammeter.tensors.hidden_reads import unseen

if TYPE_CHECKING:
    from ammeter.torch_hooks.targets import Watched

State = tuple[int, ...]
"""(identity, version, identity, version, ...) of the sampled gradients; two zeros for a missing gradient."""

NOTHING: State = (0, 0)

ALL_AT_FIRST = 4
"""First steps in which all parameters are checked; later this happens at steps whose number is a power of two."""

MOST = 512
"""Maximum number of sampled parameters of one optimizer, which bounds the cost of a check for large models."""


class OptimizerGradients:
    """The account of one optimizer: its gradients since their last reset or use.

    Attributes:
        samples: the parameters whose gradients are checked.
        everything: whether all parameters are sampled, up to MOST.
        seen: the sampled gradients at the last check.
        attempted: step of the run in which the optimizer was last asked to step.
        steps: number of steps that it has made.
        own: whether the training thread has stepped it.
        scaler: the scaler that unscaled or stepped it last.
        carried: result of the step that has used the gradients, 'applied' or 'skipped'; '' after a reset.
        left: largest element of used gradients just before backward() adds to them.
        stale: whether backward() has added to used gradients.
        marks: the scale() calls that the gradients are multiplied by.
        raw: line of a backward() on a loss that was not scaled.
        float16: line of a backward() through float16 tensors.
        updated: line of an update() since backward().
        scale: the scale at this update().
    """

    __slots__ = (
        *("_first", "_noted", "_only", "attempted", "carried", "everything", "float16", "left", "marks"),
        *("optimizer", "own", "raw", "samples", "scale", "scaler", "seen", "stale", "steps", "updated"),
    )

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.samples: list[weakref.ref[torch.Tensor]] = []
        self._first: weakref.ref[torch.Tensor] | None = None
        self._only: Callable[[], torch.Tensor | None] = _nobody
        self.seen: State = NOTHING
        self.everything = False
        self.attempted = -1
        self.own = False
        self.steps = 0
        self.scaler: Callable[[], Any] = lambda: None
        self.marks: set[Mark] = set()
        self._noted = True
        self.use("")

    def use(self, outcome: str) -> None:
        """Records that a step has used the gradients.

        Args:
            outcome: 'applied' or 'skipped'; '' if the gradients were reset or nothing is known about them.
        """
        self.carried = outcome
        self.stale = False
        if self.marks:
            self.marks = set()
        if self._noted:
            self._noted = False
            self.left: Any = None
            self.scale: Any = None
            self.raw = self.float16 = self.updated = ""

    def note(self, **what: Any) -> None:
        """Stores rare attributes until the gradients are used."""
        self._noted = True
        self.left = what.get("left", self.left)
        self.scale = what.get("scale", self.scale)
        self.raw = what.get("raw", self.raw)
        self.float16 = what.get("float16", self.float16)
        self.updated = what.get("updated", self.updated)

    def add(self, marks: Iterable[Mark], now: State) -> None:
        """Records that backward() has changed the gradients to the state `now`."""
        self.marks.update(marks)
        self.seen = now
        if self.carried:
            self.stale = True
        if self.everything:
            self._first = next(ref for ref, gradient in zip(self.samples, now[::2], strict=True) if gradient)

    def now(self) -> State:
        """The state of the sampled gradients, read without the program's function modes."""
        if _modes():
            return unseen(self._look, ())
        if self.everything:
            return self._look()
        parameter = self._only()
        gradient = None if parameter is None else parameter.grad
        return NOTHING if gradient is None else (id(gradient), _version(gradient))

    def parameters(self) -> list[torch.Tensor]:
        """The sampled parameters that still exist."""
        return [parameter for ref in self.samples if (parameter := ref()) is not None]

    def sample(self, everything: bool) -> None:
        """Chooses the parameters to check.

        Args:
            everything: all parameters, up to MOST; otherwise the first that had a gradient in a check of all.
        """
        optimizer = self.optimizer()
        if optimizer is None:
            return
        chosen = unseen(lambda: self._choose(optimizer, everything), ())
        self.samples = [weakref.ref(parameter) for parameter in chosen]
        self._only = self.samples[0] if self.samples else _nobody
        self.everything = everything
        self.seen = self.now()

    def _choose(self, optimizer: torch.optim.Optimizer, everything: bool) -> list[torch.Tensor]:
        first = None if everything or self._first is None else self._first()
        if first is not None:
            return [first]
        trained = [
            parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad
        ]
        return trained[:: max(1, len(trained) // MOST)] if everything else trained[:1]

    def _look(self) -> State:
        state: list[int] = []
        for ref in self.samples:
            parameter = ref()
            gradient = None if parameter is None else parameter.grad
            state += NOTHING if gradient is None else (id(gradient), _version(gradient))
        return tuple(state)


class Ledger:
    """The accounts of all watched optimizers."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._accounts: dict[int, OptimizerGradients] = {}
        self.accounts: list[OptimizerGradients] = []
        self._thread = get_ident()

    def trains_here(self) -> None:
        """Records this thread as the training thread, after a call that only training makes."""
        self._thread = get_ident()

    def elsewhere(self) -> bool:
        """Whether this is not the training thread.

        Another thread could crash if it read a gradient while autograd sets it.
        """
        return get_ident() != self._thread

    def of(self, optimizer: Any) -> OptimizerGradients | None:
        """The account of an optimizer, created on first use; None if it is not watched."""
        account = self._accounts.get(id(optimizer))
        if account is not None and account.optimizer() is optimizer:
            return account
        if optimizer not in self._watched.optimizers:
            return None
        account = self._accounts[id(optimizer)] = OptimizerGradients(optimizer)
        account.sample(everything=True)
        self.accounts = list(self._accounts.values())
        return account

    def open(self) -> None:
        """Updates the accounts to the optimizers that are watched now."""
        here = [optimizer for optimizer in self._watched.optimizers if not self._is_foreign(optimizer)]
        present = {id(optimizer): account for optimizer in here if (account := self.of(optimizer)) is not None}
        self._accounts = present
        self.accounts = list(present.values())

    def ours(self) -> list[OptimizerGradients]:
        """The accounts that can be checked safely.

        If several threads train, these are the optimizers that this thread has stepped: reading a gradient while the
        autograd of another thread sets it would crash.
        """
        if self._watched.by_several_threads and not all(account.own for account in self.accounts):
            self._accounts = {key: account for key, account in self._accounts.items() if account.own}
            self.accounts = list(self._accounts.values())
        return self.accounts

    def _is_foreign(self, optimizer: torch.optim.Optimizer) -> bool:
        return self._watched.by_several_threads and id(optimizer) not in self._accounts

    def adopt(self) -> list[OptimizerGradients]:
        """Accepts a change of gradients by a call that keeps their scale.

        Such a call is, for example, a clip.

        Returns:
            The accounts with changed gradients.
        """
        changed: list[OptimizerGradients] = []
        if self.elsewhere():
            return changed
        for account in self.ours():
            now = account.now()
            if now != account.seen:
                account.seen = now
                changed.append(account)
        return changed


def empty(state: State) -> bool:
    """Whether none of the sampled parameters has a gradient."""
    return not any(state)


def _version(gradient: torch.Tensor) -> int:
    try:
        return gradient._version
    except RuntimeError:  # a gradient made in inference mode has no version
        return 0


def _nobody() -> None:
    return None


_modes: Callable[[], int] = torch._C._len_torch_function_stack
