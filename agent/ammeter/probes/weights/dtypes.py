"""Reports the dtypes of weights and optimizer state: at the start and after each change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from ammeter.preparation.optimizer_state import (
    compensates,
    elements_by_dtype,
    is_compensation,
    restored_counts,
    state_tensors,
)
from ammeter.tensors import async_copy
from ammeter.tensors.hidden_reads import has_numbers, unseen
from ammeter.tensors.slices import MAX_TENSOR_ELEMENTS, readable
from ammeter.torch_hooks import optimizer_steps, patch

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

CHECK_STEPS = 500
"""Optimizer steps after which parameter groups and dtypes are checked again."""

MAX_COMPARED_WEIGHTS = 3
"""Half-precision weights that are compared with possible master weights, per name of a state."""

MAX_STATE_NAMES = 4
"""Names of half-precision states that a census lists."""

HALF = (torch.float16, torch.bfloat16)

Counts = dict[str, Any]


class Census:
    name = "census"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._reported: Counts | None = None
        self._due: set[int] = set()
        self._steps = 0
        self._began: set[int] = set()
        self._updates: int | None = None
        """Steps that an optimizer had made before the first step of this process; None while unknown."""

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        watched = self._session.watched
        guard(self._start)()
        return [
            *self._session.fast_path.pauses([optimizer_steps.after(guard(self._stepped))]),
            *patch.methods(watched.optimizer_kinds, "load_state_dict", after=guard(self._loaded)),
        ]

    def joined(self, optimizer: torch.optim.Optimizer) -> None:
        self._due.add(id(optimizer))

    def finish(self, row: Row) -> None:
        """Reports a census after its comparison with possible master weights has arrived."""
        for counts, equalities, updates in row.raw.get("census", ()):
            counts["masters"] = counts["masters"] or any(_are_equal(equality) for equality in equalities)
            if self._updates is None and updates is not None:
                self._updates = max(0, round(updates.number()) - 1)
            counts["updates"] = self._updates
            self._emit(row, counts)

    def _start(self) -> None:
        if self._reported is None:
            self._due = set(map(id, self._session.watched.optimizers))
            self._updates = self._updates_known()
            self._reported = self._count() | {"masters": self._has_masters(), "updates": self._updates}
            if compute := compute_dtype(self._session.watched.models):
                self._reported["compute"] = compute
            self._session.emit("weights.census", self._reported)

    def _loaded(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        """Reports the dtypes of a loaded state."""
        if args[0] in self._session.watched.optimizers:
            self._due.add(id(args[0]))
            data = restored_counts(args[0], args[1] if len(args) > 1 else kwargs.get("state_dict"))
            updates = None if self._began else self._updates_known()
            self._updates = self._updates if updates is None else updates
            self._session.emit("optimizer.restored", data | {"updates": updates})

    def _stepped(self, optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
        """Takes a census after an optimizer's first step, after a load, and every CHECK_STEPS steps.

        The first step creates the state, and a loaded checkpoint may change its form.
        """
        self._steps += 1
        if id(optimizer) not in self._due and self._steps % CHECK_STEPS:
            return
        if optimizer in self._session.watched.optimizers:
            self._due.discard(id(optimizer))
            is_first = id(optimizer) not in self._began
            self._began.add(id(optimizer))
            with torch.no_grad():
                unseen(lambda: self._count_after_step(self._session.row, optimizer if is_first else None), ())

    def _count_after_step(self, row: Row, new_optimizer: torch.optim.Optimizer | None) -> None:
        """Takes a census.

        Args:
            row: the row of the open step.
            new_optimizer: the optimizer, if this was its first step in this process.
        """
        counts = self._count() | {"masters": self._has_masters()}
        equalities = [] if counts["masters"] else [async_copy.of(equality) for equality in self._compared()]
        for transfer in equalities:
            row.later("census", transfer)
        updates = None if new_optimizer is None or self._updates is not None else _updates_of(new_optimizer)
        if updates is not None:
            row.wait_for(updates)
        row.raw.setdefault("census", []).append((counts, equalities, updates))

    def _emit(self, row: Row, counts: Counts) -> None:
        if self._reported and "compute" in self._reported:
            counts["compute"] = self._reported["compute"]
        if counts != self._reported:
            self._reported = counts
            row.events.append(("weights.census", counts))

    def _count(self) -> Counts:
        watched = self._session.watched
        for optimizer in watched.optimizers:
            watched.parameters(optimizer)  # registers parameters that were added since, so that alive() has them
        tensors = self._weights()
        states = [
            (name, state)
            for optimizer in watched.optimizers
            for _, name, state in state_tensors(optimizer)
            if not is_compensation(name)
        ]
        return {
            "parameters": elements_by_dtype(tensors),
            "trainable": elements_by_dtype(tensor for tensor in tensors if tensor.requires_grad),
            "state": elements_by_dtype(state for _, state in states),
            "half_state": sorted({name for name, state in states if state.dtype in HALF})[:MAX_STATE_NAMES],
        }

    def _weights(self) -> list[torch.Tensor]:
        """The watched weights without copies such as an EMA, which are not trained."""
        copies = {index for index, _, _ in self._session.watched.copies}
        return [tensor for index, tensor in self._session.watched.alive() if index not in copies]

    def _updates_known(self) -> int | None:
        """The largest step count in the optimizers' states, among those that the host knows."""
        counts = [_updates_of(optimizer, on_host=True) for optimizer in self._session.watched.optimizers]
        return max((round(count.number()) for count in counts if count is not None), default=None)

    def _has_masters(self) -> bool:
        """Whether an optimizer steps float32 weights of its own instead of the model's half-precision weights.

        Optimizers that compensate the rounding of these weights need none.
        """
        watched = self._session.watched
        if watched.optimizers and all(map(compensates, watched.optimizers)):
            return True
        stepped = [parameter for optimizer in watched.optimizers for parameter in watched.parameters(optimizer)[0]]
        own = {
            id(parameter): parameter
            for ref in watched.models
            if (model := ref()) is not None
            for parameter in model.parameters()
        }
        unstepped = set(own) - set(map(id, stepped))
        foreign = [parameter for parameter in stepped if id(parameter) not in own and parameter.dtype is torch.float32]
        return bool(foreign) and any(_is_half(own[weight]) for weight in unstepped)

    def _compared(self) -> Iterator[torch.Tensor]:
        """Compares half-precision weights with float32 state of the same shape, rounded to the weight's dtype.

        A rounded master copy always equals its weight; a moment never does.

        Yields:
            Tensors [2]: equal non-zero elements, non-zero elements of the weight.
        """
        compared: Counter[str] = Counter()
        for optimizer in self._session.watched.optimizers:
            for parameter, name, state in state_tensors(optimizer):
                usable = state.dtype is torch.float32 and state.shape == parameter.shape and _is_half(parameter)
                if usable and compared[name] < MAX_COMPARED_WEIGHTS:
                    compared[name] += 1
                    yield from _equality(parameter, state)


def _equality(parameter: torch.Tensor, state: torch.Tensor) -> Iterator[torch.Tensor]:
    weight, master = readable(parameter), readable(state)
    if weight is not None and master is not None and weight.is_contiguous() and master.is_contiguous():
        own = weight.view(-1)[:MAX_TENSOR_ELEMENTS]
        equal = own.eq(master.view(-1)[:MAX_TENSOR_ELEMENTS].to(own.dtype)).logical_and_(own.ne(0))
        yield torch.stack([equal.sum(), own.count_nonzero()])


def _are_equal(arrived: async_copy.Transfer) -> bool:
    equal, count = arrived.array()
    return bool(equal == count > 0)


def _updates_of(optimizer: torch.optim.Optimizer, *, on_host: bool = False) -> async_copy.Transfer | None:
    """The step count in an optimizer's state, None if there is none.

    Args:
        optimizer: the optimizer.
        on_host: use only a count that the host knows without a transfer.
    """
    for state in optimizer.state.values():
        count = state.get("step") if isinstance(state, dict) else None
        if isinstance(count, torch.Tensor):
            usable = count.numel() == 1 and has_numbers(count) and (count.is_cpu or not on_host)
            return async_copy.of(count) if usable else None
        if isinstance(count, int | float):
            return async_copy.number(float(count))
    return None


def _is_half(tensor: torch.Tensor) -> bool:
    return tensor.dtype in HALF and tensor.requires_grad


def compute_dtype(models: Iterable[Callable[[], torch.nn.Module | None]]) -> str:
    """Returns the dtype that FSDP or DDP casts weights to for forward and backward, '' for none.

    Their mixed precision is not that of autocast: it is a policy of a wrapped module.

    Args:
        models: weak references.
    """
    for ref in models:
        model = ref()
        for module in model.modules() if model is not None else ():
            state = getattr(module, "_get_fsdp_state", None)  # of fully_shard()
            policy = getattr(module, "mixed_precision", None) if state is None else getattr(state(), "_mp_policy", None)
            dtype = getattr(policy, "param_dtype", None)
            if isinstance(dtype, torch.dtype):
                return str(dtype).removeprefix("torch.")
    return ""
