"""Finds the floating-point tensors in a module's inputs and outputs, and measures their numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ammeter.tensors import async_copy
from ammeter.tensors.hidden_reads import has_numbers, unseen

MAX_CONTAINER_ENTRIES = 64
"""Entries examined in one container, because a cache of keys and values may hold hundreds of tensors."""

MAX_DEPTH = 6

_READABLE_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Numbers(NamedTuple):
    """The statistics of one tensor.

    Attributes:
        absmax: largest absolute value of the finite elements.
        nans: NaN elements.
        positive: +Inf elements.
        negative: -Inf elements.
        sample: first index along the first dimension with a NaN or an Inf, -1 if there is none.
    """

    absmax: float
    nans: float
    positive: float
    negative: float
    sample: float

    @property
    def bad(self) -> bool:
        return self.nans + self.positive + self.negative > 0

    @property
    def infinite(self) -> bool:
        """Whether all elements that are not zero are infinite."""
        return self.bad and not self.nans and not self.absmax

    @property
    def masked(self) -> bool:
        """Whether all non-finite elements are -Inf, as in an attention mask, which is no fault."""
        return self.nans + self.positive == 0 and self.negative > 0


def inside(value: Any, path: str = "", depth: int = MAX_DEPTH) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (path, tensor) for the readable floating-point tensors in a nested value.

    Example of a path: "['image'][0]".
    """
    if isinstance(value, torch.Tensor):
        if is_readable(value):
            yield path, value
    elif depth:
        for key, part in _parts(value):
            yield from inside(part, path + key, depth - 1)


def is_readable(tensor: torch.Tensor) -> bool:
    """Whether a tensor has floating-point numbers. FSDP frees the memory of weights that a graph still refers to."""
    return (
        tensor.dtype in _READABLE_DTYPES
        and tensor.layout is torch.strided
        and has_numbers(tensor)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and tensor.numel() > 0
        and tensor.data_ptr() != 0
    )


def version(tensor: torch.Tensor) -> int:
    """The tensor's count of in-place changes; -1 for tensors made in inference mode."""
    return -1 if tensor.is_inference() else tensor._version


class Readings:
    """The statistics of many tensors: immediate on the CPU, after send() on other devices."""

    def __init__(self) -> None:
        self._numbers: list[Numbers | None] = []
        self._on_devices: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
        self._sent: list[tuple[list[int], async_copy.Transfer]] = []

    def add(self, tensor: torch.Tensor) -> int:
        """Measures a tensor as it is now; returns the index of its result in all()."""
        place = len(self._numbers)
        self._numbers.append(None)
        with torch.no_grad():
            if tensor.is_cpu:
                self._numbers[place] = unseen(lambda: _measure_on_host(tensor.detach()), (tensor,))
            else:
                statistics = unseen(lambda: _measure(tensor.detach()), (tensor,))
                self._on_devices.setdefault(tensor.device, []).append((place, statistics))
        return place

    def send(self) -> list[async_copy.Transfer]:
        """Starts the transfer of all results on devices to the host, without waiting for it."""
        transfers = []
        for pending in self._on_devices.values():
            statistics = [statistics for _, statistics in pending]
            transfer = async_copy.of(unseen(partial(torch.stack, statistics), statistics))
            self._sent.append(([place for place, _ in pending], transfer))
            transfers.append(transfer)
        self._on_devices.clear()
        return transfers

    def all(self) -> list[Numbers | None]:
        """The results by index; None for a result that was never sent. The transfers must have arrived."""
        for places, arrived in self._sent:
            statistics: npt.NDArray[Any] = np.asarray(arrived.array(), np.float64).reshape(-1, len(Numbers._fields))
            for place, numbers in zip(places, statistics.tolist(), strict=True):
                self._numbers[place] = Numbers(*numbers)
        return self._numbers


def _measure_on_host(tensor: torch.Tensor) -> Numbers:
    low, high = (float(extreme) for extreme in torch.aminmax(tensor))
    if math.isfinite(low) and math.isfinite(high):
        return Numbers(max(abs(low), abs(high)), 0, 0, 0, -1)
    return Numbers(*_measure(tensor).tolist())


def _measure(tensor: torch.Tensor) -> torch.Tensor:
    """Measures a tensor on its device: float32[5] in the order of Numbers.

    Counts above 2^24 are rounded.
    """
    finite = torch.isfinite(tensor)
    by_sample = (~finite).reshape(tensor.shape[0] if tensor.dim() else 1, -1).any(1)
    first = torch.where(by_sample.any(), by_sample.to(torch.int32).argmax(), -1)
    statistics = (
        torch.where(finite, tensor, 0).abs().amax(),
        torch.isnan(tensor).sum(),
        torch.isposinf(tensor).sum(),
        torch.isneginf(tensor).sum(),
        first,
    )
    return torch.stack([statistic.to(torch.float32) for statistic in statistics])


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", element) for key, element in list(value.items())[:MAX_CONTAINER_ENTRIES]]
    if isinstance(value, list | tuple):
        return [(f"[{at}]", element) for at, element in enumerate(value[:MAX_CONTAINER_ENTRIES])]
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)[:MAX_CONTAINER_ENTRIES]
        return [(f".{field.name}", getattr(value, field.name, None)) for field in fields]
    return []


def measured(tensor: Any) -> Numbers | None:
    """The numbers of a tensor on the host, None for anything else."""
    if not isinstance(tensor, torch.Tensor) or not tensor.is_cpu or not is_readable(tensor):
        return None
    readings = Readings()
    readings.add(tensor)
    return readings.all()[0]
