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
from ammeter.torch_hooks.targets import wraps

if TYPE_CHECKING:
    from ammeter.torch_hooks.targets import Watched

State = tuple[int, ...]
"""(identity, version, identity, version, ...) of the sampled gradients; two zeros for a missing gradient."""

NO_GRADIENT: State = (0, 0)

MAX_FIRST_FULL_CHECKS = 4
"""First steps in which all parameters are checked; later this happens at steps whose number is a power of two."""

MAX_SAMPLED_PARAMETERS = 512
"""Maximum number of sampled parameters of one optimizer, which bounds the cost of a check for large models."""


class OptimizerGradients:
    """The account of one optimizer: its gradients since their last reset or use.

    Attributes:
        samples: the parameters whose gradients are checked.
        everything: whether all parameters are sampled, up to MAX_SAMPLED_PARAMETERS.
        seen: the sampled gradients at the last check.
        attempted: step of the run in which the optimizer was last asked to step.
        steps: number of steps that it has made.
        own: whether the training thread has stepped it.
        scaler: the scaler that unscaled or stepped it last.
        outcome: result of the step that has used the gradients, 'applied' or 'skipped'; '' after a reset.
        leftover: largest element of used gradients just before backward() adds to them.
        added_line: line of the backward() that adds to them.
        produced: sampled elements after the last backward(), if the optimizer may step past the scaler.
        clipped: the same elements just before torch's last clip.
        clips: factors by which torch's clips have made them smaller.
        edited: whether the program had changed the gradients before a clip by torch.
        is_past_scaler: whether the optimizer has stepped past the scaler on gradients that the program had changed.
        samples_taken: how often elements were sampled after backward().
        stale: whether backward() has added to used gradients.
        marks: the scale() calls that the gradients are multiplied by.
        unscaled_by_wrapper: last step in which a scaler unscaled the object that wraps the optimizer, -1 if never.
        unscaled_line: line of a backward() on a loss that was not scaled.
        float16_line: line of a backward() through float16 tensors.
        update_line: line of an update() since backward().
        scale: the scale at this update().
    """

    __slots__ = (
        *(
            "_first",
            "_has_details",
            "_sample_ref",
            "added_line",
            "attempted",
            "clipped",
            "clips",
            "edited",
            "everything",
            "float16_line",
            "is_past_scaler",
            "leftover",
            "marks",
            "produced",
        ),
        *("optimizer", "outcome", "own", "samples", "samples_taken", "scale", "scaler", "seen", "stale", "steps"),
        *("unscaled_by_wrapper", "unscaled_line", "update_line"),
    )

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.samples: list[weakref.ref[torch.Tensor]] = []
        self._first: weakref.ref[torch.Tensor] | None = None
        self._sample_ref: Callable[[], torch.Tensor | None] = _no_parameter
        self.seen: State = NO_GRADIENT
        self.everything = False
        self.attempted = self.unscaled_by_wrapper = -1
        self.own = False
        self.steps = self.samples_taken = 0
        self.is_past_scaler = False
        self.scaler: Callable[[], Any] = lambda: None
        self.marks: set[Mark] = set()
        self._has_details = True
        self.use("")

    def use(self, outcome: str) -> None:
        """Records that a step has used the gradients.

        Args:
            outcome: 'applied' or 'skipped'; '' if the gradients were reset or nothing is known about them.
        """
        self.outcome = outcome
        self.stale = False
        if self.marks:
            self.marks = set()
        if self._has_details:
            self._has_details = False
            self.leftover: Any = None
            self.scale: Any = None
            self.produced: torch.Tensor | None = None
            self.clipped: torch.Tensor | None = None
            self.clips: torch.Tensor | None = None
            self.edited = False
            self.unscaled_line = self.float16_line = self.update_line = self.added_line = ""

    def record(self, **details: Any) -> None:
        """Stores rare attributes until the gradients are used."""
        self._has_details = True
        self.leftover = details.get("leftover", self.leftover)
        self.added_line = details.get("added_line", self.added_line)
        self.scale = details.get("scale", self.scale)
        self.produced = details.get("produced", self.produced)
        self.clipped = details.get("clipped", self.clipped)
        self.clips = details.get("clips", self.clips)
        self.edited = details.get("edited", self.edited)
        self.unscaled_line = details.get("unscaled_line", self.unscaled_line)
        self.float16_line = details.get("float16_line", self.float16_line)
        self.update_line = details.get("update_line", self.update_line)

    def add(self, marks: Iterable[Mark], now: State) -> None:
        """Records that backward() has changed the gradients to the state `now`."""
        self.marks.update(marks)
        self.seen = now
        if self.outcome:
            self.stale = True
        if self.everything:
            self._first = next(ref for ref, gradient in zip(self.samples, now[::2], strict=True) if gradient)

    @property
    def is_sampled(self) -> bool:
        """Whether elements show how the program changes the gradients: unless only scalers have used them."""
        return self.is_past_scaler or self.scaler() is None

    def state(self) -> State:
        """The state of the sampled gradients, read without the program's function modes."""
        if _modes():
            return unseen(self._read_state, ())
        if self.everything:
            return self._read_state()
        parameter = self._sample_ref()
        gradient = None if parameter is None else parameter.grad
        return NO_GRADIENT if gradient is None else (id(gradient), _version(gradient))

    def parameters(self) -> list[torch.Tensor]:
        """The sampled parameters that still exist."""
        return [parameter for ref in self.samples if (parameter := ref()) is not None]

    def sample(self, everything: bool) -> None:
        """Chooses the parameters to check.

        Args:
            everything: all parameters, up to MAX_SAMPLED_PARAMETERS; otherwise the first that had a gradient in a
                check of all.
        """
        optimizer = self.optimizer()
        if optimizer is None:
            return
        chosen = unseen(lambda: self._choose(optimizer, everything), ())
        self.samples = [weakref.ref(parameter) for parameter in chosen]
        self._sample_ref = self.samples[0] if self.samples else _no_parameter
        self.everything = everything
        self.seen = self.state()

    def _choose(self, optimizer: torch.optim.Optimizer, everything: bool) -> list[torch.Tensor]:
        first = None if everything or self._first is None else self._first()
        if first is not None:
            return [first]
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        # of a network that is frozen for now, such as a discriminator while the generator trains, all are sampled
        trained = [parameter for parameter in parameters if parameter.requires_grad] or parameters
        return trained[:: max(1, len(trained) // MAX_SAMPLED_PARAMETERS)] if everything else trained[:1]

    def _read_state(self) -> State:
        state: list[int] = []
        for ref in self.samples:
            parameter = ref()
            gradient = None if parameter is None else parameter.grad
            state += NO_GRADIENT if gradient is None else (id(gradient), _version(gradient))
        return tuple(state)


class Ledger:
    """The accounts of all watched optimizers."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._accounts: dict[int, OptimizerGradients] = {}
        self.accounts: list[OptimizerGradients] = []
        self._thread = get_ident()

    def set_training_thread(self) -> None:
        """Records this thread as the training thread, after a call that only training makes."""
        self._thread = get_ident()

    def is_other_thread(self) -> bool:
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

    def of_wrapped(self, outer: Any) -> OptimizerGradients | None:
        """The account of the watched optimizer that an unwatched one wraps, None if there is none."""
        own = ((account, account.optimizer()) for account in self.accounts if outer is not None)
        return next((account for account, inner in own if inner is not None and wraps(outer, inner)), None)

    def refresh(self) -> None:
        """Updates the accounts to the optimizers that are watched now."""
        own = [optimizer for optimizer in self._watched.optimizers if not self._is_foreign(optimizer)]
        present = {id(optimizer): account for optimizer in own if (account := self.of(optimizer)) is not None}
        self._accounts = present
        self.accounts = list(present.values())

    def checkable(self) -> list[OptimizerGradients]:
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

    def accept_changes(self) -> list[OptimizerGradients]:
        """Accepts a change of gradients by a call that keeps their scale.

        Such a call is, for example, a clip.

        Returns:
            The accounts with changed gradients.
        """
        changed: list[OptimizerGradients] = []
        if self.is_other_thread():
            return changed
        for account in self.checkable():
            now = account.state()
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


def _no_parameter() -> None:
    return None


_modes: Callable[[], int] = torch._C._len_torch_function_stack
