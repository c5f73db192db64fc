"""Copies numbers from a device to the host without synchronization.

On the CPU they are available at once. On CUDA a copy into pinned memory is queued after the work that produces them,
and ready() queries an event; the row that waits for them is written a step later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from ammeter.tensors.hidden_reads import is_plain, unseen

Array = npt.NDArray[np.floating[Any]]


class Arriving(Protocol):
    """Something that a device computes and the host reads later.

    Attributes:
        on_host: whether it was on the host from the beginning.
    """

    @property
    def on_host(self) -> bool: ...
    def ready(self) -> bool: ...


class Transfer(Arriving, Protocol):
    """A float32[n] or float64[n] array that arrives later."""

    def array(self) -> Array: ...
    def number(self) -> float:
        """Returns the first number."""


def of(values: torch.Tensor) -> Transfer:
    """Transfers the present values of a tensor, flattened; later changes have no effect."""
    if _dispatch_modes() or _function_modes():
        return unseen(lambda: _transfer(values), (values,))
    return _transfer(values)


def known(values: Any) -> float | None:
    """Returns the single number of a CPU tensor, else None.

    None for a tensor on a device, with several numbers, or for other objects.
    """
    if type(values) is not torch.Tensor and not (isinstance(values, torch.Tensor) and is_plain(values)):
        return None
    if _dispatch_modes() or _function_modes():
        return unseen(lambda: _known(values), (values,))
    return _known(values)


def number(value: float) -> Transfer:
    """Wraps a number that is already on the host."""
    return Number(value)


def _transfer(values: torch.Tensor) -> Transfer:
    if values.is_cpu and not values.dim():
        number = values.item()  # already on the host: no wait
        if type(number) is not complex:
            return Number(number)
    if values.device.type == "cuda":
        return _FromCuda(values)
    return Arrived(_flat(values).cpu().numpy().copy())


def _flat(values: torch.Tensor) -> torch.Tensor:
    flat = values.detach().reshape(-1)
    return flat if flat.dtype is torch.float64 else flat.to(torch.float32)


def _known(values: torch.Tensor) -> float | None:
    try:
        return values.item() if values.is_cpu else None
    except RuntimeError:  # several numbers
        return None


class Number:
    """One number that is already on the host."""

    __slots__ = ("_value",)
    on_host = True

    def __init__(self, value: float) -> None:
        self._value = value

    def ready(self) -> bool:
        return True

    def array(self) -> Array:
        with np.errstate(over="ignore"):
            return np.array([self._value], np.float32)

    def number(self) -> float:
        return self._value


class Arrived:
    """Numbers that are already on the host."""

    __slots__ = ("_values",)
    on_host = True

    def __init__(self, values: Array) -> None:
        self._values = values

    def ready(self) -> bool:
        return True

    def array(self) -> Array:
        return self._values

    def number(self) -> float:
        return float(self._values[0])


class Stopwatch:
    """Measures device time between begin and end without waiting; 0 on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[Any] = []
        self._mark()

    def end(self) -> Stopwatch:
        self._mark()
        return self

    def seconds(self) -> float:
        """Returns the seconds, after the work queued before end() has completed."""
        return self._marks[0].elapsed_time(self._marks[1]) / 1000 if self._marks else 0.0

    def _mark(self) -> None:
        if self._device.type == "cuda":
            self._marks.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            self._marks[-1].record(torch.cuda.current_stream(self._device))


class _FromCuda:
    on_host = False

    def __init__(self, values: torch.Tensor) -> None:
        flat = _flat(values)
        self._host = torch.empty(flat.shape, dtype=flat.dtype, device="cpu", pin_memory=True)
        self._host.copy_(flat, non_blocking=True)
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(values.device))

    def ready(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def array(self) -> Array:
        return self._host.numpy()

    def number(self) -> float:
        return float(self._host[0])


_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
