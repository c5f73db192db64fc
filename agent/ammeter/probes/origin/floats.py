"""The floating-point tensors inside what a module takes and gives, and what is said about the numbers in one."""

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

MOST = 64
"""Tensors looked at in one nested value; a cache of keys and values may hold hundreds."""

DEPTH = 6

_READ = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Numbers(NamedTuple):
    """What is said about one tensor. absmax: of its finite elements. sample: the first index along the first
    dimension that holds a NaN or an Inf, -1 without one."""

    absmax: float
    nans: float
    positive: float
    negative: float
    sample: float

    @property
    def bad(self) -> bool:
        return self.nans + self.positive + self.negative > 0

    @property
    def masked(self) -> bool:
        """Whether -Inf is all that is not finite, as in the mask of an attention: no fault by itself."""
        return self.nans + self.positive == 0 and self.negative > 0


def inside(value: Any, path: str = "", depth: int = DEPTH) -> Iterator[tuple[str, torch.Tensor]]:
    """(path such as "['image'][0]", tensor) of the floating-point tensors with numbers in a nested value."""
    if isinstance(value, torch.Tensor):
        if is_readable(value):
            yield path, value
    elif depth:
        for key, each in _parts(value):
            yield from inside(each, path + key, depth - 1)


def is_readable(tensor: torch.Tensor) -> bool:
    return (
        tensor.dtype in _READ
        and tensor.layout is torch.strided
        and has_numbers(tensor)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and tensor.numel() > 0
    )


def version(tensor: torch.Tensor) -> int:
    """Counts the changes in place; a tensor made in inference mode does not count."""
    return -1 if tensor.is_inference() else tensor._version


class Readings:
    """Numbers of many tensors. On the CPU they are here at once, elsewhere they come when sent for."""

    def __init__(self) -> None:
        self._numbers: list[Numbers | None] = []
        self._away: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
        self._sent: list[tuple[list[int], async_copy.Transfer]] = []

    def take(self, tensor: torch.Tensor) -> int:
        """Reads the present numbers of a tensor; returns the place where they will be."""
        place = len(self._numbers)
        self._numbers.append(None)
        with torch.no_grad():
            if tensor.is_cpu:
                self._numbers[place] = unseen(lambda: _here(tensor.detach()), (tensor,))
            else:
                found = unseen(lambda: _there(tensor.detach()), (tensor,))
                self._away.setdefault(tensor.device, []).append((place, found))
        return place

    def send(self) -> list[async_copy.Transfer]:
        """Starts the way to the host of all that lies on a device; nothing waits for it."""
        begun = []
        for several in self._away.values():
            found = [each for _, each in several]
            arriving = async_copy.of(unseen(partial(torch.stack, found), found))
            self._sent.append(([place for place, _ in several], arriving))
            begun.append(arriving)
        self._away.clear()
        return begun

    def all(self) -> list[Numbers | None]:
        """By place, once what was sent has arrived; None for what was never sent."""
        for places, arrived in self._sent:
            found: npt.NDArray[Any] = np.asarray(arrived.array(), np.float64).reshape(-1, len(Numbers._fields))
            for place, numbers in zip(places, found.tolist(), strict=True):
                self._numbers[place] = Numbers(*numbers)
        return self._numbers


def _here(tensor: torch.Tensor) -> Numbers:
    low, high = (float(each) for each in torch.aminmax(tensor))
    if math.isfinite(low) and math.isfinite(high):
        return Numbers(max(abs(low), abs(high)), 0, 0, 0, -1)
    return Numbers(*_there(tensor).tolist())


def _there(tensor: torch.Tensor) -> torch.Tensor:
    """float32[5], in the order of Numbers; counts beyond 2^24 are rounded."""
    finite = torch.isfinite(tensor)
    by_sample = (~finite).reshape(tensor.shape[0] if tensor.dim() else 1, -1).any(1)
    first = torch.where(by_sample.any(), by_sample.to(torch.int32).argmax(), -1)
    found = (
        torch.where(finite, tensor, 0).abs().amax(),
        torch.isnan(tensor).sum(),
        torch.isposinf(tensor).sum(),
        torch.isneginf(tensor).sum(),
        first,
    )
    return torch.stack([each.to(torch.float32) for each in found])


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", each) for key, each in list(value.items())[:MOST]]
    if isinstance(value, list | tuple):
        return [(f"[{at}]", each) for at, each in enumerate(value[:MOST])]
    if dataclasses.is_dataclass(value):
        return [(f".{field.name}", getattr(value, field.name, None)) for field in dataclasses.fields(value)[:MOST]]
    return []
