"""What a session watches: the model's name for every tensor, the optimizers and the scalers. Held weakly."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from ammeter.wire import Tensor

_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module")
"""Path parts that DDP, torch.compile and FSDP put in; a name is the same with and without them."""


class Watched:
    """Names are settled here once; everything else speaks of tensors by their index."""

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        scalers: Sequence[torch.amp.GradScaler],
    ) -> None:
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet(optimizers)
        self.scalers: weakref.WeakSet[torch.amp.GradScaler] = weakref.WeakSet(scalers)
        self.tensors: list[Tensor] = []
        self._index: dict[int, int] = {}
        self._plans: weakref.WeakKeyDictionary[torch.optim.Optimizer, tuple[int, list[Any], list[int]]] = (
            weakref.WeakKeyDictionary()
        )
        for name, parameter in _named(models):
            self._add(name, parameter)
        for optimizer in optimizers:
            self.parameters(optimizer)

    def parameters(self, optimizer: torch.optim.Optimizer) -> tuple[list[torch.Tensor], list[int]]:
        """The optimizer's parameters and the index of each; a group added later gets new indices."""
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        plan = self._plans.get(optimizer)
        if plan is None or plan[0] != count:
            plan = self._plans[optimizer] = (count, *self._place(optimizer))
        return [each for each in (found() for found in plan[1]) if each is not None], plan[2]

    def optimizers_of(self, parameters: Iterable[torch.Tensor]) -> list[torch.optim.Optimizer]:
        """The watched optimizers that own any of these parameters."""
        asked = {self._index[id(each)] for each in parameters if id(each) in self._index}
        return [each for each in self.optimizers if not asked.isdisjoint(self.parameters(each)[1])] if asked else []

    def owns(self, scaler: torch.amp.GradScaler) -> bool:
        """Whether a scaler is ours. Where none was given, the first one the program uses is."""
        return scaler in self.scalers or not self.scalers

    def enabled_scalers(self) -> list[torch.amp.GradScaler]:
        return [scaler for scaler in self.scalers if scaler.is_enabled()]

    def scaling(self, optimizer: torch.optim.Optimizer) -> torch.amp.GradScaler | None:
        """The scaler whose scale is in this optimizer's gradients now: not yet unscaled, not yet updated."""
        for scaler in self.enabled_scalers():
            state = scaler._per_optimizer_states.get(id(optimizer), {})
            if scaler._scale is not None and state.get("stage", OptState.READY) is OptState.READY:
                return scaler
        return None

    def _place(self, optimizer: torch.optim.Optimizer) -> tuple[list[Any], list[int]]:
        found: list[Any] = []
        for number, group in enumerate(optimizer.param_groups):
            for position, parameter in enumerate(group["params"]):
                if id(parameter) not in self._index:
                    self._add(f"group{number}.{position}", parameter)
                found.append(parameter)
        return [weakref.ref(each) for each in found], [self._index[id(each)] for each in found]

    def _add(self, name: str, parameter: torch.Tensor) -> None:
        self._index[id(parameter)] = len(self.tensors)
        shape, dtype = tuple(parameter.shape), str(parameter.dtype).removeprefix("torch.")
        self.tensors.append(Tensor(name, shape, dtype))


def gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """The numbers of a parameter's gradient as one dense real tensor of this rank, None when there are none.

    Sparse: the coalesced values. Sharded (DTensor): the local shard, so that no collective is started. Complex:
    seen as pairs of reals.
    """
    found = parameter.grad
    if found is None or found.is_meta:
        return None
    found = getattr(found, "_local_tensor", found).detach()
    if found.is_sparse:
        found = (found if found.is_coalesced() else found.coalesce()).values()
    if found.is_complex():
        found = torch.view_as_real(found)
    return found if found.layout is torch.strided and found.is_floating_point() else None


def _named(models: Iterable[torch.nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    several = list(models)
    for number, model in enumerate(several):
        prefix = f"model{number}." if len(several) > 1 else ""
        for name, parameter in model.named_parameters():
            yield prefix + ".".join(part for part in name.split(".") if part not in _WRAPPERS), parameter
