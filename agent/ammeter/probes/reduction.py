"""Reads gradients before and after they are reduced over ranks, in the steps after a bad one.

Before: as backward hands each of them to its parameter, and as the program hands them to all_reduce(). After: as
backward() and all_reduce() leave them. No hook is on the graph in other steps, and Ammeter communicates nothing itself.

In some other steps, too, the gradients are read when a program that reduces them itself begins to, with the buffers
that it hands to all_reduce(): these should have the gradients, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ammeter.probes.collectives import BITS, note_bits
from ammeter.recording.schedule.shared_steps import next_shared
from ammeter.tensors import async_copy
from ammeter.tensors.hidden_reads import unseen
from ammeter.tensors.slices import readable
from ammeter.torch_hooks import patch

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

ARMED_STEPS = 8
"""Steps that are read after a bad one. Ranks write their rows at different times, so that their windows differ by some
steps."""

MAX_ARMED_STEPS = 200
"""Steps that are read in a run, because a scaler that calibrates its scale has bad steps, too."""


EARLY_STEPS = 4
"""Steps at the beginning of a run in which buffers are read."""

BUFFERS_SHARE = 0.002
"""Share of the step time for reading buffers in later steps."""

MIN_BUFFER_SHARE = 0.05
"""Elements of a buffer that is read, over those of the trained weights. A smaller one may hold a metric."""


class Reduction:
    name = "reduction"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._armed_until = 0
        self._left = MAX_ARMED_STEPS
        self._step = -1
        self._hooks: list[Any] = []
        self._local: list[torch.Tensor] = []
        self._fired: set[int] = set()
        self._is_complete = True
        self._buffers = _Buffers(session, self)

    @property
    def is_armed(self) -> bool:
        return bool(self._hooks)

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        distributed = torch.distributed
        is_one_of_several = distributed.is_available() and distributed.is_initialized()
        is_sharded = any(tensor.copies for tensor in self._session.watched.tensors)
        if not is_one_of_several or is_sharded or distributed.get_world_size() < 2:
            return []
        self._guard = self._session.guard(self.name)
        handles = [patch.backward(before=guard(self._before_backward), after=guard(self._after_backward))]
        handles += self._buffers.attach(guard)
        return [self, *self._session.fast_path.pauses(handles)]

    def remove(self) -> None:
        """Removes the hooks from the graph and from torch.distributed."""
        while self._hooks:
            self._hooks.pop().remove()
        self._local, self._fired, self._is_complete = [], set(), True

    def finish(self, row: Row) -> None:
        if any(event == "gradient.nonfinite" for event, _ in row.events) and self._left:
            self._armed_until = self._session.row.step + ARMED_STEPS
        local, reduced, handed = (row.arrived(key) for key in ("local_gradients", "reduced_gradients", "handed"))
        if local and not row.raw.get("reduction_is_partial"):
            sizes = np.concatenate(local)
            row.scalars["local_nonfinite"] = float((~np.isfinite(sizes)).sum())
            row.scalars["local_absmax"] = _largest(sizes)
        if reduced:
            row.scalars["reduced_nonfinite"] = float((~np.isfinite(np.concatenate(reduced))).sum())
        if handed:
            row.scalars["reduce_absmax"] = _largest(np.concatenate(handed))
        if buffers := row.arrived("buffers"):
            row.scalars["handed_nonfinite"] = float((~np.isfinite(np.concatenate(buffers))).sum())
        if "reduce_bits" in row.raw:
            row.scalars["reduce_bits"] = row.raw["reduce_bits"]

    def _before_backward(self, _: tuple[Any, ...], __: dict[str, Any]) -> None:
        step = self._session.row.step
        if patch.inside_backward():
            return
        if self._hooks and step != self._step:
            self.remove()
        if step < self._armed_until and not self._hooks and self._left:
            self._left -= 1
            self._step = step
            self._install()

    def _install(self) -> None:
        """Adds hooks to the nodes that receive the gradients, which exist since the forward pass."""
        distributed = torch.distributed
        before, after = self._guard(self._reduces), self._guard(self._reduced)
        self._hooks.append(patch.function(distributed, "all_reduce", before=before, after=after))
        on_gradient = self._guard(self._on_gradient)
        for index, parameter in self._session.watched.alive():
            if not parameter.requires_grad:
                continue
            if parameter.grad is not None:  # what an earlier step left; it is part of the sum
                self._read(parameter.grad)
            with torch.enable_grad():
                node: Any = unseen(lambda: parameter.view_as(parameter).grad_fn, (parameter,))  # noqa: B023
            receiver = node.next_functions[0][0]
            self._hooks.append(receiver.register_prehook(lambda grads, index=index: on_gradient(index, grads[0])))

    def _on_gradient(self, index: int, gradient: torch.Tensor | None) -> None:
        if gradient is not None:
            self._fired.add(index)
            self._read(gradient)

    def _read(self, gradient: torch.Tensor) -> None:
        numbers = readable(gradient)
        if numbers is None or numbers.is_nested or not numbers.numel():
            self._is_complete = False
        else:
            self._local.append(_absmax(numbers))

    def _after_backward(self, _: tuple[Any, ...], __: dict[str, Any], ___: Any) -> None:
        """Sends what was read, and reads the gradients as this pass leaves them."""
        row = self._session.row
        if not self._hooks or patch.inside_backward() or row.step != self._step:
            return
        gradients = []
        for index, parameter in self._session.watched.alive():
            if parameter.grad is not None:
                self._is_complete = self._is_complete and index in self._fired
                numbers = readable(parameter.grad)
                if numbers is not None and numbers.dtype in (torch.float32, torch.float64):  # no sum overflows
                    gradients.append(numbers)
        if not self._is_complete:
            row.raw["reduction_is_partial"] = True
        _send(row, "local_gradients", self._local)
        _send(row, "reduced_gradients", [_absmax(gradient) for gradient in gradients])
        self._local = []

    def _reduces(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        row, tensor = self._session.row, _tensor_in(args, kwargs)
        if tensor is None or row.step != self._step:
            return
        note_bits(row, tensor)
        size = _absmax(tensor)
        _send(row, "handed", [size])
        if BITS[tensor.dtype] >= BITS[torch.float32]:  # a cast to 16 bits is part of the reduction
            _send(row, "local_gradients", [size])

    def _reduced(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Reads the result of a call that has waited for it."""
        row, tensor = self._session.row, _tensor_in(args, kwargs)
        if result is None and tensor is not None and row.step == self._step:
            _send(row, "reduced_gradients", [_absmax(tensor)])


class _Buffers:
    """Reads gradients and buffers when the program hands the buffers to all_reduce() after backward().

    Ranks read the same steps: the first ones, the shared ones, and multiples of a power of two that the cost decides.
    """

    def __init__(self, session: ProbeContext, reduction: Reduction) -> None:
        self._session = session
        self._reduction = reduction
        self._step = self._first_step = -1
        self._every = 1
        self._began = self._spent = self._in_step = 0.0
        self._spent_in = -1

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        return [patch.function(torch.distributed, "all_reduce", before=guard(self._reduces))]

    def _reduces(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        row, tensor = self._session.row, _tensor_in(args, kwargs)
        if tensor is None or self._reduction.is_armed or row.stepped or not row.raw.get("micro_batches"):
            return
        if patch.inside_backward() or not self._is_due(row.step):
            return
        began = perf_counter()
        parameters = [parameter for _, parameter in self._session.watched.alive() if parameter.requires_grad]
        if tensor.numel() >= MIN_BUFFER_SHARE * sum(parameter.numel() for parameter in parameters):
            if self._step != row.step:
                self._read_gradients(row, parameters)
            _send(row, "buffers", [_absmax(tensor)])
            note_bits(row, tensor)
            self._spend(row.step, perf_counter() - began)

    def _read_gradients(self, row: Row, parameters: list[torch.Tensor]) -> None:
        self._step = row.step
        gradients = [readable(parameter.grad) for parameter in parameters if parameter.grad is not None]
        numbers = [gradient for gradient in gradients if gradient is not None and gradient.numel()]
        if len(numbers) < len(gradients):
            row.raw["reduction_is_partial"] = True
        _send(row, "local_gradients", [_absmax(gradient) for gradient in numbers])

    def _is_due(self, step: int) -> bool:
        return step < EARLY_STEPS or step % self._every == 0 or next_shared(step) == step

    def _spend(self, step: int, seconds: float) -> None:
        """Selects the interval at which the readings keep their share of the step time."""
        now = perf_counter()
        if self._first_step < 0:
            self._first_step, self._began = step, now
        self._in_step = seconds + (self._in_step if self._spent_in == step else 0.0)
        self._spent_in = step
        self._spent = max(self._spent, self._in_step)
        steps = step - self._first_step
        if steps >= EARLY_STEPS:
            allowed = BUFFERS_SHARE * (now - self._began) / steps
            self._every = 1 << max(0, math.ceil(math.log2(self._spent / allowed)))


def _tensor_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Returns the tensor that all_reduce() receives; None for one number, such as a loss that is averaged."""
    tensor = args[0] if args else kwargs.get("tensor")
    is_gradient = isinstance(tensor, torch.Tensor) and tensor.dtype in BITS and tensor.numel() > 1
    return tensor if is_gradient else None


def _absmax(numbers: torch.Tensor) -> torch.Tensor:
    """Returns the largest absolute value, which is not finite if an element is not. Allocates no copy."""
    with torch.no_grad():
        return unseen(lambda: _larger(*numbers.detach().aminmax()), (numbers,))


def _larger(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    return torch.maximum(low.neg(), high).to(torch.float32)


def _send(row: Row, key: str, sizes: list[torch.Tensor]) -> None:
    for device in {size.device for size in sizes}:
        of_device = [size for size in sizes if size.device == device]
        row.later(key, async_copy.of(unseen(lambda: torch.stack(of_device), of_device)))  # noqa: B023 - called at once


def _largest(sizes: Any) -> float:
    finite = sizes[np.isfinite(sizes)]
    return float(finite.max()) if finite.size else 0.0
