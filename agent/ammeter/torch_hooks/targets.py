"""The objects that a session watches: named tensors, optimizers and scalers. References are weak."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.amp.grad_scaler import OptState
from torch.nn.parameter import is_lazy

from ammeter.tensors.hidden_reads import unseen
from ammeter.tensors.sharding import copies, shard
from ammeter.torch_hooks.weak_id_set import WeakIdSet
from ammeter.wire.frames import Tensor

WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_forward_module")
"""Path parts that DDP, torch.compile, FSDP and Lightning Fabric insert; names omit them, so that they are equal
with and without wrappers."""


class Watched:
    """The watched objects; assigns each tensor a name and an index once.

    All other code refers to tensors by index.
    """

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        scalers: Sequence[torch.amp.GradScaler],
    ) -> None:
        self.models = [weakref.ref(model) for model in models]
        self.optimizers: WeakIdSet[torch.optim.Optimizer] = WeakIdSet(optimizers)
        self.scalers: WeakIdSet[torch.amp.GradScaler] = WeakIdSet(scalers)
        self._scaling: WeakIdSet[torch.amp.GradScaler] = WeakIdSet(())
        """Scalers that have scaled a loss, whether or not they were passed to watch()."""
        self.scaler_kinds: set[type] = {*kinds_of(torch.amp.GradScaler), *map(type, scalers)}
        self.optimizer_kinds: set[type] = {torch.optim.Optimizer, *map(type, optimizers)}
        self.by_several_threads = False
        self.tensors: list[Tensor] = []
        self.copies: list[tuple[int, Callable[[], torch.Tensor | None], weakref.ref[torch.Tensor] | None]] = []
        self.found_copies: dict[int, str] = {}
        """Index of a tensor of a copy that was found and not declared -> name of the copy."""
        self._owners: tuple[tuple[int, ...], list[weakref.ref[torch.optim.Optimizer]]] = (), []
        self._index: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._plans: weakref.WeakKeyDictionary[torch.optim.Optimizer, tuple[list[weakref.ref[Any]], list[int]]] = (
            weakref.WeakKeyDictionary()
        )
        self._scaler_of: weakref.WeakKeyDictionary[torch.optim.Optimizer, weakref.ref[torch.amp.GradScaler]] = (
            weakref.WeakKeyDictionary()
        )
        for name, parameter in _named(models):
            self._add(name, parameter)
        for optimizer in optimizers:
            self.parameters(optimizer)

    def parameters(self, optimizer: torch.optim.Optimizer) -> tuple[list[torch.Tensor], list[int]]:
        """Returns the optimizer's parameters and their indices.

        A parameter that is added or replaced later gets a new index.
        """
        present = list(_parameters(optimizer))
        known_refs, indices = self._plans.get(optimizer, ((), ()))
        if len(known_refs) != len(present) or any(
            ref() is not tensor for ref, tensor in zip(known_refs, present, strict=True)
        ):
            indices = self._add_all(optimizer)
            self._plans[optimizer] = [weakref.ref(tensor) for tensor in present], indices
        return present, list(indices)

    def alive(self) -> list[tuple[int, torch.Tensor]]:
        """Returns (index, tensor) of all live tensors, trained or not."""
        pairs = [(index, ref()) for ref, index in self._index.values()]
        return [(index, tensor) for index, tensor in pairs if tensor is not None]

    def join(self, models: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer) -> None:
        """Adds an optimizer created later, and the named tensors of the models it trains."""
        for model in models:
            prefix = f"model{len(self.models)}." if self.models else ""
            if any(not self.knows(parameter) for parameter in model.parameters()):
                self.models.append(weakref.ref(model))
            for name, parameter in _named([model]):
                self._add(prefix + name, parameter)
        self.parameters(optimizer)
        self.optimizers.add(optimizer)
        self._owners = (), []

    def knows(self, parameter: torch.Tensor) -> bool:
        return self._index_of(parameter) is not None

    def follow(self, name: str, copy: torch.nn.Module) -> None:
        """Watches a copy of the model that the program keeps, such as an EMA.

        Its tensors are named 'name.…'. Each adds (index, tensor, weight) to `copies`, where weight is the model's
        tensor of that name and shape, or None.
        """
        weights = {self.tensors[index].name: tensor for index, tensor in self.alive()}
        for own, parameter in _named([copy]):
            if not self.knows(parameter):
                weight = weights.get(own)
                same = None if weight is None or weight.shape != parameter.shape else weakref.ref(weight)
                self.copies.append((self._add(f"{name}.{own}", parameter), weakref.ref(parameter), same))

    def follow_found(
        self, name: str, pairs: Iterable[tuple[str, torch.Tensor, Callable[[], torch.Tensor | None]]]
    ) -> None:
        """Watches a copy that was found in memory.

        Args:
            pairs: name of a weight, the tensor of the copy, and a function that returns its present tensor.
        """
        weights = {self.tensors[index].name: tensor for index, tensor in self.alive()}
        for own, tensor, present in pairs:
            index = self._add(f"{name}.{own}", tensor)
            self.copies.append((index, present, weakref.ref(weights[own])))
            self.found_copies[index] = name

    def optimizers_of(self, parameters: Sequence[torch.Tensor]) -> list[torch.optim.Optimizer]:
        """Returns the watched optimizers that own any of these parameters.

        The result is cached for the last list of parameters.
        """
        if not parameters:
            return []
        ends = (len(parameters), id(parameters[0]), id(parameters[-1]))
        known_ends, owners = self._owners
        if ends != known_ends or self._index_of(parameters[0]) is None or self._index_of(parameters[-1]) is None:
            ids = set(map(id, parameters))
            owning = [optimizer for optimizer in self.optimizers if not ids.isdisjoint(map(id, _parameters(optimizer)))]
            self._owners = ends, owners = ends, [weakref.ref(optimizer) for optimizer in owning]
        return [owner for ref in owners if (owner := ref()) is not None]

    def optimizers_of_gradients(self, gradients: Sequence[torch.Tensor]) -> list[torch.optim.Optimizer]:
        """Returns the watched optimizers that own a parameter with any of these gradients."""
        ids = set(map(id, gradients))
        return [
            optimizer
            for optimizer in self.optimizers
            if any(id(parameter.grad) in ids for parameter in _parameters(optimizer))
        ]

    def at_most_one_each(self) -> bool:
        """Whether there is at most one optimizer and at most one scaler."""
        return self.optimizers.at_most_one() and self.scalers.at_most_one()

    def use(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        """Records that this scaler unscales and steps this optimizer, and watches the scaler."""
        if self._scaler(optimizer) is not scaler:
            self.scalers.add(scaler)
            self._scaler_of[optimizer] = weakref.ref(scaler)

    def scales(self, scaler: torch.amp.GradScaler) -> None:
        """Records that this scaler scales a loss.

        Its optimizer is known only when it unscales or steps one.
        """
        if scaler not in self._scaling:
            self._scaling.add(scaler)

    def owns(self, scaler: torch.amp.GradScaler) -> bool:
        """Whether a scaler is watched.

        If none was given, every scaler counts as watched until the first one is used.
        """
        return scaler in self.scalers or not self.scalers

    def scaling(self, optimizer: torch.optim.Optimizer) -> torch.amp.GradScaler | None:
        """Returns the scaler whose scale is in this optimizer's gradients now, if any.

        It has neither unscaled nor updated since.
        """
        for scaler in self._scalers_of(optimizer):
            ready = _state(scaler, optimizer).get("stage", OptState.READY) is OptState.READY
            if scaler.is_enabled() and scaler._scale is not None and ready:
                return scaler
        return None

    def unscaled(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether a scaler has unscaled this optimizer's gradients in this step."""
        stages = [_state(scaler, optimizer).get("stage") for scaler in self._scalers_of(optimizer)]
        return OptState.UNSCALED in stages

    def scaled_by_one(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether at most one scaler can have scaled this optimizer's loss, from calls so far."""
        return len(self._scalers_of(optimizer)) < 2

    def overflowed(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the scaler found Inf in this optimizer's gradients, if the host knows it."""
        scaler = self._scaler(optimizer)
        state = {} if scaler is None else _state(scaler, optimizer)
        numbers = [number for number in state.get("found_inf_per_device", {}).values() if number.is_cpu]
        return bool(numbers) and unseen(lambda: any(float(number) > 0 for number in numbers), numbers)

    def _scalers_of(self, optimizer: torch.optim.Optimizer) -> tuple[torch.amp.GradScaler, ...]:
        """Returns the scaler that has used this optimizer, else all that may use it."""
        used = self._scaler(optimizer)
        if used is not None:
            return (used,)
        watched = tuple(scaler for scaler in self._scaling if scaler in self.scalers)
        return watched or tuple(self.scalers) or tuple(self._scaling)

    def _scaler(self, optimizer: torch.optim.Optimizer) -> torch.amp.GradScaler | None:
        scaler_ref = self._scaler_of.get(optimizer)
        return scaler_ref() if scaler_ref else None

    def _add_all(self, optimizer: torch.optim.Optimizer) -> list[int]:
        return [
            self._add(f"group{number}.{position}", parameter)
            for number, group in enumerate(optimizer.param_groups)
            for position, parameter in enumerate(group["params"])
        ]

    def _index_of(self, parameter: torch.Tensor) -> int | None:
        """Returns the index of a tensor; None if its id belonged to another tensor."""
        ref, index = self._index.get(id(parameter), (None, -1))
        return index if ref is not None and ref() is parameter else None

    def _add(self, name: str, parameter: torch.Tensor) -> int:
        index = self._index_of(parameter)
        if index is None:
            index = len(self.tensors)
            self._index[id(parameter)] = weakref.ref(parameter), index
            shape = (0,) if is_lazy(parameter) else tuple(shard(parameter).shape)
            dtype = str(parameter.dtype).removeprefix("torch.")
            self.tensors.append(Tensor(name, shape, dtype, copies(parameter)))
        return index


def kinds_of(kind: type) -> list[type]:
    """Returns a class and all its present subclasses.

    FSDP's ShardedGradScaler, for example, has methods of its own.
    """
    derived: list[type] = type.__subclasses__(kind)
    return [kind, *(descendant for child in derived for descendant in kinds_of(child))]


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _state(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns the scaler's state of this optimizer in this step; empty for a disabled scaler."""
    states: dict[int, dict[str, Any]] = getattr(scaler, "_per_optimizer_states", {})
    return states.get(id(optimizer), {})


def is_wrapped(optimizer: torch.optim.Optimizer, others: Iterable[torch.optim.Optimizer]) -> bool:
    """Returns whether an optimizer contains one of the others, or the reverse.

    Such optimizers step as one.
    """
    return any(wraps(other, optimizer) or wraps(optimizer, other) for other in others)


def wraps(outer: torch.optim.Optimizer, inner: torch.optim.Optimizer) -> bool:
    """Returns whether an optimizer wraps another one, as those of accelerate and ZeRO do, or several."""
    return outer is not inner and any(value is inner or _lists(value, inner) for value in vars(outer).values())


def _lists(value: Any, inner: torch.optim.Optimizer) -> bool:
    """Returns whether this is a list of optimizers with this one; long lists of other objects are not read."""
    if not isinstance(value, list | tuple) or not value or not isinstance(value[0], torch.optim.Optimizer):
        return False
    return any(optimizer is inner for optimizer in value)


def innermost(optimizers: Sequence[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
    """Returns the optimizers, each replaced by the one that it wraps, if that one has the same parameters.

    The outer one need not be asked to step, as that of sharpness-aware minimization; the inner one steps for it.
    """
    found: dict[int, torch.optim.Optimizer] = {}
    for outer in optimizers:
        own = set(map(id, _parameters(outer)))
        inner = (value for value in vars(outer).values() if isinstance(value, torch.optim.Optimizer))
        same = (value for value in inner if value is not outer and own == set(map(id, _parameters(value))))
        optimizer = next(same, outer)
        found[id(optimizer)] = optimizer
    return list(found.values())


def optimizer_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the optimizer argument of scaler.step(optimizer) or scaler.unscale_(optimizer=optimizer)."""
    return args[1] if len(args) > 1 else kwargs.get("optimizer")


def _named(models: Iterable[torch.nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    several = list(models)
    for number, model in enumerate(several):
        prefix = f"model{number}." if len(several) > 1 else ""
        for name, parameter in model.named_parameters():
            yield prefix + plain_name(name), parameter


def plain_name(name: str) -> str:
    """Returns the path of a module or tensor without the parts that torch's wrappers add."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)
