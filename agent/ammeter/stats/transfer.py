"""Numbers on their way from a device to the host, without a synchronisation.

On CPU they are there at once. On CUDA a copy into pinned memory is queued behind the work that makes them, and
ready() asks an event whether it has passed; the row that waits for it is written a step late.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[np.float32]


class Transfer(Protocol):
    """float32[n] that arrives."""

    def ready(self) -> bool: ...
    def array(self) -> Array: ...


def of(values: torch.Tensor) -> Transfer:
    """The present numbers of a tensor of any shape, flattened; later changes of the tensor do not show."""
    if values.device.type == "cuda":
        return _FromCuda(values)
    return Arrived(values.detach().to(torch.float32).reshape(-1).numpy().copy())


def number(value: float) -> Transfer:
    """A number the host has already."""
    return Arrived(np.array([value], np.float32))


class Arrived:
    def __init__(self, values: Array) -> None:
        self._values = values

    def ready(self) -> bool:
        return True

    def array(self) -> Array:
        return self._values


class _FromCuda:
    def __init__(self, values: torch.Tensor) -> None:
        flat = values.detach().to(torch.float32).reshape(-1)
        self._host = torch.empty(flat.shape, dtype=torch.float32, pin_memory=True)
        self._host.copy_(flat, non_blocking=True)
        self._passed = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._passed.record(torch.cuda.current_stream(values.device))

    def ready(self) -> bool:
        return bool(self._passed.query())  # type: ignore[no-untyped-call]

    def array(self) -> Array:
        return self._host.numpy()
