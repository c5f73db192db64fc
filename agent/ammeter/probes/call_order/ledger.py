"""What lies in the gradients of each optimizer, as far as calls and versions tell, without reading a number.

A gradient that is another tensor, or another version of the same, was changed in between. That is looked at around
backward() and step(), on one parameter of each optimizer; in the first steps, now and then, and in doubt, on all.
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
"""(identity, version, identity, version, ...) of the sampled gradients; two zeros where there is none."""

NOTHING: State = (0, 0)

ALL_AT_FIRST = 4
"""Steps in which all parameters are looked at; later so at steps whose number is a power of two."""

MOST = 512
"""Parameters of one optimizer that are looked at at once."""


class OptimizerGradients:
    """One optimizer. What is in its gradients since they were last reset or used for a step.

    seen: as they were when they were last looked at. attempted: the step of the run in which the optimizer was last
    asked to step; steps: how many it has made; own: whether this thread did. scaler: that unscaled or stepped it last.

    carried: what became of the step that the gradients were used for and not reset since, 'applied' or 'skipped';
    left: the largest element of them when backward() was about to add to them; stale: it did.

    marks: what they are scaled by. raw, float16: the line that called backward() on something unscaled, or with
    float16 in it. updated: the line that called update() meanwhile, when this scale was in them.
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
        """The gradients are used for a step, and nothing new any more; or, with '', they hold nothing known at all."""
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
        """Keeps something rare until the gradients are used."""
        self._noted = True
        self.left = what.get("left", self.left)
        self.scale = what.get("scale", self.scale)
        self.raw = what.get("raw", self.raw)
        self.float16 = what.get("float16", self.float16)
        self.updated = what.get("updated", self.updated)

    def add(self, marks: Iterable[Mark], now: State) -> None:
        """backward() changed the gradients: they are `now` as they are."""
        self.marks.update(marks)
        self.seen = now
        if self.carried:
            self.stale = True
        if self.everything:
            self._first = next(ref for ref, gradient in zip(self.samples, now[::2], strict=True) if gradient)

    def now(self) -> State:
        """The sampled gradients as they are, unseen by the program's own function modes."""
        if _modes():
            return unseen(self._look, ())
        if self.everything:
            return self._look()
        parameter = self._only()
        gradient = None if parameter is None else parameter.grad
        return NOTHING if gradient is None else (id(gradient), _version(gradient))

    def parameters(self) -> list[torch.Tensor]:
        """Those of the sampled ones that are still there."""
        return [parameter for ref in self.samples if (parameter := ref()) is not None]

    def sample(self, everything: bool) -> None:
        """Chooses which parameters are looked at: all, or the first that had a gradient when all were looked at."""
        optimizer = self.optimizer()
        if optimizer is None:
            return
        chosen = unseen(lambda: self._choose(optimizer, everything), ())
        self.samples = [weakref.ref(each) for each in chosen]
        self._only = self.samples[0] if self.samples else _nobody
        self.everything = everything
        self.seen = self.now()

    def _choose(self, optimizer: torch.optim.Optimizer, everything: bool) -> list[torch.Tensor]:
        first = None if everything or self._first is None else self._first()
        if first is not None:
            return [first]
        trained = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
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
        """The run has made a call that only training makes, in this thread."""
        self._thread = get_ident()

    def elsewhere(self) -> bool:
        """Whether this is not the thread that trains. To read a gradient that autograd sets meanwhile would crash."""
        return get_ident() != self._thread

    def of(self, optimizer: Any) -> OptimizerGradients | None:
        """The account of a watched optimizer."""
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
        """Accounts for all optimizers that are watched now, and for no others."""
        here = [each for each in self._watched.optimizers if not self._is_foreign(each)]
        present = {id(each): account for each in here if (account := self.of(each)) is not None}
        self._accounts = present
        self.accounts = list(present.values())

    def ours(self) -> list[OptimizerGradients]:
        """The accounts that may be looked at now. Where another thread trains, too, those that this one has stepped: to
        read a gradient that another one's autograd sets meanwhile would crash."""
        if self._watched.by_several_threads and not all(account.own for account in self.accounts):
            self._accounts = {key: account for key, account in self._accounts.items() if account.own}
            self.accounts = list(self._accounts.values())
        return self.accounts

    def _is_foreign(self, optimizer: torch.optim.Optimizer) -> bool:
        return self._watched.by_several_threads and id(optimizer) not in self._accounts

    def adopt(self) -> list[OptimizerGradients]:
        """Something that is known has changed gradients, and what is in them stays in them. Returns whose."""
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
    except RuntimeError:  # a gradient made in inference mode has none
        return 0


def _nobody() -> None:
    return None


_modes: Callable[[], int] = torch._C._len_torch_function_stack
