"""Counts the collectives of torch.distributed in some steps: operation, dtype, bytes and ranks.

DistributedDataParallel reduces its buckets in C++, where no call is seen; its buckets are described by the parameters,
or by its communication hook, whose own calls are seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ammeter.recording.schedule.shared_steps import next_shared
from ammeter.torch_hooks import patch

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

EVENT = "collectives.census"

BITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
"""Significant bits of the dtypes that gradients are reduced in."""

INPUTS = {
    "all_reduce": (0, "tensor"),
    "reduce": (0, "tensor"),
    "reduce_scatter": (1, "input_list"),
    "reduce_scatter_tensor": (1, "input"),
    "reduce_scatter_single": (1, "input"),
    "all_gather": (1, "tensor"),
    "all_gather_into_tensor": (1, "input_tensor"),
    "all_gather_single": (1, "input_tensor"),
}
"""Functions of torch.distributed -> position and name of what this rank passes to them."""

MAX_KINDS = 16
"""Kinds of calls that an event has, with most bytes first."""

MAX_NAME_CHARS = 80

Kind = tuple[str, str, str, int]
"""Operation, dtype, phase, and number of ranks."""


class Collectives:
    name = "collectives"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._step, self._is_counted = -1, False
        self._known: set[Kind] = set()

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() < 2:
            return []
        guard = self._session.guard(self.name)
        handles = [
            patch.function(distributed, name, before=guard(self._observer(name)))
            for name in INPUTS
            if hasattr(distributed, name)
        ]
        return self._session.fast_path.pauses(handles)

    def finish(self, row: Row) -> None:
        """Writes an event if the step has kinds of calls that no earlier one had."""
        counts: dict[Kind, list[int]] = row.raw.get("collectives", {})
        if not self._is_due(row.step) or not row.raw.get("micro_batches"):
            return
        row.scalars["reduced_share"] = self._reduced_share(counts)
        counts |= {kind: [0, size] for kind, size in self._of_ddp()}
        if counts.keys() <= self._known:
            return
        self._known |= counts.keys()
        most = sorted(counts.items(), key=lambda entry: -entry[1][1])[:MAX_KINDS]
        calls = [
            {"op": op, "dtype": dtype, "phase": phase, "ranks": ranks, "calls": count, "bytes": size}
            for (op, dtype, phase, ranks), (count, size) in most
        ]
        hooks = [name for model in self._ddp_models() for name in _hooks_of(model)]
        is_sharded = any(tensor.copies for tensor in self._session.watched.tensors)
        row.events.append((EVENT, {"calls": calls, "hooks": hooks, "sharded": is_sharded}))

    def _observer(self, op: str) -> Callable[[tuple[Any, ...], dict[str, Any]], None]:
        position, name = INPUTS[op]

        def observe(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            row = self._session.row
            if not self._is_due(row.step):
                return
            given = args[position] if len(args) > position else kwargs.get(name)
            tensors = [tensor for tensor in _as_list(given) if _is_counted(tensor)]
            if tensors:
                self._count(row, op, tensors, kwargs.get("group"))

        return observe

    def _count(self, row: Row, op: str, tensors: list[torch.Tensor], group: Any) -> None:
        phase = "step" if row.stepped else "backward" if row.raw.get("micro_batches") else "forward"
        kind = op, _name(tensors[0].dtype), phase, torch.distributed.get_world_size(group)
        count = row.raw.setdefault("collectives", {}).setdefault(kind, [0, 0])
        count[0] += 1
        count[1] += sum(_bytes(tensor) for tensor in tensors)
        if op == "all_reduce" and phase == "backward":
            note_bits(row, tensors[0])

    def _reduced_share(self, counts: dict[Kind, list[int]]) -> float:
        """Returns the elements that were passed to all_reduce() after backward(), over those of the trained weights."""
        trained = sum(tensor.numel() for _, tensor in self._session.watched.alive() if tensor.requires_grad)
        reduced: list[float] = [
            size / getattr(torch, dtype).itemsize
            for (op, dtype, phase, _), (_, size) in counts.items()
            if op == "all_reduce" and phase == "backward"
        ]
        return sum(reduced) / max(trained, 1)

    def _is_due(self, step: int) -> bool:
        """Whether the calls of a step are counted: in the shared steps, at which all ranks read."""
        if step != self._step:
            self._step, self._is_counted = step, next_shared(step) == step
        return self._is_counted

    def _ddp_models(self) -> Iterator[DistributedDataParallel]:
        return (model for model in self._session.forward.models() if isinstance(model, DistributedDataParallel))

    def _of_ddp(self) -> Iterator[tuple[Kind, int]]:
        """Yields the buckets, by dtype, of wrappers without a communication hook."""
        for model in self._ddp_models():
            if _hooks_of(model):
                continue
            reduced_in = getattr(getattr(model, "mixed_precision", None), "reduce_dtype", None)
            sizes: dict[torch.dtype, int] = {}
            for parameter in model.module.parameters():
                if parameter.requires_grad:
                    dtype = reduced_in or parameter.dtype
                    sizes[dtype] = sizes.get(dtype, 0) + parameter.numel() * dtype.itemsize
            ranks = torch.distributed.get_world_size(model.process_group)
            for dtype, size in sizes.items():
                yield ("buckets of DDP", _name(dtype), "backward", ranks), size


def note_bits(row: Row, tensor: torch.Tensor) -> None:
    """Records the significant bits of a tensor that is summed over ranks; a row has the fewest."""
    row.raw["reduce_bits"] = min(BITS[tensor.dtype], row.raw.get("reduce_bits", 64))


def _hooks_of(model: DistributedDataParallel) -> list[str]:
    hooks = [hook for hook, _ in getattr(model, "_comm_hooks", ())]
    return [str(getattr(hook, "__name__", type(hook).__name__))[:MAX_NAME_CHARS] for hook in hooks]


def _is_counted(tensor: Any) -> bool:
    """Whether a tensor may consist of weights, gradients or activations: not of one number, such as a loss."""
    return isinstance(tensor, torch.Tensor) and tensor.dtype in BITS and tensor.numel() > 1


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _as_list(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]
