"""The order in which the modules of a model first run in a forward pass, as an order of its tensors.

A census has hooks on all modules in any case. Tensors are registered in the order of the program's constructors, which
may be another one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

MAX_NUMBERS = 50_000
"""Numbers in an order that is recorded: 25,000 runs of neighbouring tensors, in at most 150 KB."""


class ForwardOrder:
    """The modules of one step in the order in which they first ran, until they are reported."""

    def __init__(self) -> None:
        self._entered: dict[str, int] = {}
        self._weights: dict[int, int] = {}
        """Module, and id of a weight -> place of the first module that ran with it."""

    def add(self, entered: Iterable[str], modules: Iterable[tuple[str, torch.nn.Module]]) -> None:
        """Adds a forward pass.

        Args:
            entered: paths of the modules that ran, in order.
            modules: path and module of those that could be observed.
        """
        for name in entered:
            self._entered.setdefault(name, len(self._entered))
        for name, module in modules:
            place = self._entered.get(name, sys.maxsize)
            for weight in module._parameters.values():
                if weight is not None:
                    self._weights[id(weight)] = min(place, self._weights.get(id(weight), sys.maxsize))

    def event(self, names: Sequence[str], alive: Iterable[tuple[int, torch.Tensor]]) -> dict[str, Any] | None:
        """Returns the data of the event; None if no module ran, or if the order has too many numbers.

        Args:
            names: of all tensors, in the order of the stream's columns.
            alive: index and tensor of those that exist.
        """
        if not self._entered:
            return None
        places = {index: self._weights.get(id(tensor), sys.maxsize) for index, tensor in alive}
        order = _runs(_ordered(names, self._entered, places))
        return {"order": order} if len(order) <= MAX_NUMBERS else None


def _ordered(names: Sequence[str], entered: Mapping[str, int], places: Mapping[int, int]) -> list[int]:
    """Indices of the tensors in the order of their modules.

    A tensor whose module did not run by itself, such as the output projection of torch's attention, follows all modules
    inside the next module around it that did.
    """
    last: dict[str, int] = {}
    for name, place in entered.items():
        for path in _paths(name):
            last[path] = max(last.get(path, -1), place)

    def key(index: int) -> tuple[int, bool, int]:
        place = places.get(index, sys.maxsize)
        if place < sys.maxsize:
            return place, False, index
        around = next((path for path in _paths(names[index].rpartition(".")[0]) if path in entered), None)
        if around is None:
            return sys.maxsize, True, index
        is_own = around == names[index].rpartition(".")[0]
        return (entered[around], False, index) if is_own else (last[around], True, index)

    return sorted(range(len(names)), key=key)


def _paths(name: str) -> Iterable[str]:
    """Yields a path and those around it, innermost first."""
    while name:
        yield name
        name = name.rpartition(".")[0]
    yield ""


def _runs(order: Sequence[int]) -> list[int]:
    """Packs an order: the first of some neighbouring indices, their number, and so on."""
    packed: list[int] = []
    for index in order:
        if packed and index == packed[-2] + packed[-1]:
            packed[-1] += 1
        else:
            packed += [index, 1]
    return packed
