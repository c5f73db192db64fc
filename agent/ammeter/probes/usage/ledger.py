"""What lies in the gradients of each optimizer, as far as calls and versions tell, without reading a number.

A gradient that is another tensor, or another version of the same, was changed in between. On few parameters of each
optimizer that is looked at around backward() and step(), in the first steps and now and then on all.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.usage.marks import Mark
from ammeter.probes.usage.telling import is_power_of_two
from ammeter.stats.unseen import unseen

if TYPE_CHECKING:
    from ammeter.watched import Watched

State = tuple[int | None, ...]
"""(identity, version) of the sampled gradients, one after the other; None twice where there is no gradient."""

ALL_AT_FIRST = 4
"""Steps in which all parameters are looked at; later so at steps whose number is a power of two."""

MOST = 512
"""Parameters of one optimizer that are looked at at once."""


class Account:
    """One optimizer. What is in its gradients since they were last reset or used for a step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.samples: list[weakref.ref[torch.Tensor]] = []
        self._ends: list[weakref.ref[torch.Tensor]] = []
        self.seen: State = ()
        self.everything = False
        self.attempted = -1
        """The step of the run in which this optimizer was last asked to step."""
        self.scaler: Callable[[], Any] = lambda: None
        """The scaler that unscaled or stepped it last."""
        self.reset()

    def reset(self) -> None:
        """The gradients hold nothing that was said before: they were zeroed, replaced, or changed by hand."""
        self.clear()
        self.carried = ""
        """What became of the step that the gradients were used for and not reset since: 'applied' or 'skipped'."""
        self.left: Any = None
        """Largest element of the sampled gradients when backward() was about to add to what was carried."""

    def clear(self) -> None:
        """The gradients are used for a step."""
        self.marks: set[Mark] = set()
        self.raw = ""
        self.float16 = ""
        self.stale = False
        self.updated = ""
        self.scale: Any = None
        """raw, float16, updated: the line that called backward() on something unscaled, with float16 in it, or update()
        meanwhile, and before that this scale was in them. stale: backward() added to what was carried."""

    def add(self, marks: Iterable[Mark], now: State) -> None:
        """backward() changed the gradients: they are `now` as they are."""
        self.stale = self.stale or bool(self.carried)
        self.marks.update(marks)
        self.seen = now
        if self.everything:
            had = [ref for ref, gradient in zip(self.samples, now[::2], strict=True) if gradient is not None]
            self._ends = [had[0], had[-1]] if len(had) > 1 else had

    def now(self) -> State:
        if torch._C._len_torch_function_stack():
            return unseen(self._state, ())
        return self._state()

    def parameters(self) -> list[torch.Tensor]:
        """Those of the sampled ones that are still there."""
        return [parameter for ref in self.samples if (parameter := ref()) is not None]

    def sample(self, everything: bool) -> None:
        """Chooses which parameters are looked at: all, or the first and the last that had a gradient."""
        optimizer = self.optimizer()
        if optimizer is None:
            return
        chosen = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
        if everything:
            chosen = chosen[:: max(1, len(chosen) // MOST)]
        else:
            used = [parameter for ref in self._ends if (parameter := ref()) is not None]
            chosen = used or [*chosen[:1], *chosen[1:][-1:]]
        self.everything = everything
        self.samples = [weakref.ref(each) for each in chosen]
        self.seen = self.now()

    def _state(self) -> State:
        state: list[int | None] = []
        for ref in self.samples:
            parameter = ref()
            gradient = None if parameter is None else parameter.grad
            if gradient is None:
                state += (None, None)
            else:
                state += (id(gradient), _version(gradient))
        return tuple(state)


class Ledger:
    """The accounts of all watched optimizers."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._accounts: dict[int, Account] = {}

    def of(self, optimizer: Any) -> Account | None:
        """The account of a watched optimizer."""
        account = self._accounts.get(id(optimizer))
        if account is not None and account.optimizer() is optimizer:
            return account
        if optimizer not in self._watched.optimizers:
            return None
        account = self._accounts[id(optimizer)] = Account(optimizer)
        account.sample(everything=True)
        return account

    def accounts(self) -> Iterable[Account]:
        return self._accounts.values()

    def close(self) -> None:
        self._accounts.clear()

    def open(self) -> None:
        """Accounts for all optimizers that are watched now."""
        for optimizer in self._watched.optimizers:
            self.of(optimizer)

    def settle(self, step: int, *, closely: bool = False) -> None:
        """Before backward(): what was changed since the last look was reset or changed by hand.

        This is also where a look at all parameters begins and ends: rarely, and where it is asked for.
        """
        if len(self._accounts) != len(self._watched.optimizers):
            self.open()
        everything = closely or step < ALL_AT_FIRST or is_power_of_two(step)
        for account in self._accounts.values():
            now = account.now()
            if now != account.seen:
                account.reset()
                account.seen = now
            if everything is not account.everything:
                account.sample(everything)

    def adopt(self) -> list[Account]:
        """Something that is known has changed gradients, and what is in them stays in them. Returns whose."""
        changed = []
        for account in self._accounts.values():
            now = account.now()
            if now != account.seen:
                account.seen = now
                changed.append(account)
        return changed


def empty(state: State) -> bool:
    """Whether none of the sampled parameters has a gradient."""
    return not any(each is not None for each in state)


def _version(gradient: torch.Tensor) -> int:
    try:
        return gradient._version
    except RuntimeError:  # a gradient made in inference mode has none
        return 0
