"""Finds averages of the weights in half precision that the program keeps itself, when a session starts.

The search reads the list of containers that Python's garbage collector has. It looks into no frame and calls no method
of the program.
"""

from __future__ import annotations

import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from ammeter.tensors.hidden_reads import has_numbers, is_ordinary, unseen
from ammeter.tensors.live_objects import elements, live_objects

if TYPE_CHECKING:
    from ammeter.torch_hooks.targets import Watched

MAX_CONTAINERS = 200_000
"""Containers that are examined, the newest first. A process with torch has 40,000 dictionaries and lists."""

MAX_FOUND = 2
"""Averages that are followed, so that their readings cost no more than those of two declared copies."""

COMPARED_TENSORS = 3
COMPARED_ELEMENTS = 4096
"""Largest tensors of a candidate that are compared with the weights, and elements of each."""

MAX_DISTANCE_SHARE = 0.5
"""Maximum distance between an average and its weights, relative to the norm of the weights. Moments and gradients have
the shapes of the weights too, and are farther from them."""

_HALF = (torch.float16, torch.bfloat16)
_MAPPINGS = (dict, OrderedDict)

Reference = Callable[[], torch.Tensor | None]
Pair = tuple[str, torch.Tensor, Reference]
"""Name of a weight, the tensor of its average, and a reference to the latter."""


class Entry:
    """A tensor in a container of the program, which may replace it at each step.

    A dict has no weak references, so the container is released once nothing else refers to it.
    """

    def __init__(self, held: list[Any], key: Any) -> None:
        self._held = held
        self._key = key

    def __call__(self) -> torch.Tensor | None:
        if self._held and sys.getrefcount(self._held[0]) <= _OWN_REFERENCES:
            self._held.clear()
        if not self._held:
            return None
        container = self._held[0]
        try:
            value = dict.get(container, self._key) if isinstance(container, dict) else container[self._key]
        except IndexError:
            return None
        return value if is_ordinary(value) else None


_OWN_REFERENCES = 2
"""References to a container that the program no longer has: that of Entry, and that of the call of getrefcount."""


def find_averages(watched: Watched, strays: Iterable[torch.Tensor]) -> Iterator[list[Pair]]:
    """Yields the averages of the watched weights in half precision, MAX_FOUND at most.

    Args:
        watched: The objects of the session.
        strays: Other tensors. Containers are searched only if one of these may be the average of a weight.
    """
    copies = {index for index, _, _ in watched.copies}
    weights = {watched.tensors[index].name: weight for index, weight in watched.alive() if index not in copies}
    shape = next((weight.shape for weight in weights.values()), None)
    if not any(_is_half(stray) and stray.shape == shape for stray in strays):
        return
    found = 0
    for pairs in _candidates(watched, weights):
        compared = sorted(pairs, key=lambda pair: pair[1].numel(), reverse=True)[:COMPARED_TENSORS]
        if all(_is_near(average, weights[name]) for name, average, _ in compared):
            yield pairs
            found += 1
            if found == MAX_FOUND:
                return


def _candidates(watched: Watched, weights: dict[str, torch.Tensor]) -> Iterator[list[Pair]]:
    """Yields the half-precision tensors of containers and modules with the names or the order of the weights."""
    models = [model for ref in watched.models if (model := ref()) is not None]
    kinds = {type(model) for model in models}
    for container in live_objects(dict, list, *kinds)[: -MAX_CONTAINERS - 1 : -1]:
        if any(container is model for model in models):
            continue
        try:
            pairs = _pairs(container, kinds, weights)
        except (AttributeError, RuntimeError):  # a module without its __init__(); a dict that another thread changes
            continue
        if pairs and not any(watched.knows(average) for _, average, _ in pairs):
            yield pairs


def _pairs(container: Any, kinds: set[type], weights: dict[str, torch.Tensor]) -> list[Pair]:
    kind = type(container)
    if kind in _MAPPINGS and len(container) >= len(weights):
        return _of_container(container, container, weights)
    if kind is list and len(container) == len(weights):
        return _of_container(container, dict(enumerate(elements(container))), weights)
    return _of_module(container, weights) if kind in kinds else []


def _of_module(module: torch.nn.Module, weights: dict[str, torch.Tensor]) -> list[Pair]:
    named = dict(torch.nn.Module.named_parameters(module))
    return _matching(named, weights, lambda name: weakref.ref(named[name]))


def _of_container(container: Any, values: dict[Any, Any], weights: dict[str, torch.Tensor]) -> list[Pair]:
    if not _is_half(next(iter(dict.values(values)), None)):
        return []
    held = [container]
    return _matching(dict(values), weights, lambda key: Entry(held, key))


def _matching(
    values: dict[Any, Any], weights: dict[str, torch.Tensor], reference: Callable[[Any], Reference]
) -> list[Pair]:
    """Assigns tensors to weights by name, or by order if their numbers are equal; [] if one does not match."""
    if all(name in values for name in weights):
        keys = {name: name for name in weights}
    elif len(values) == len(weights):
        keys = dict(zip(weights, values, strict=True))
    else:
        return []
    if not all(_is_half(values[key]) and values[key].shape == weights[name].shape for name, key in keys.items()):
        return []
    return [(name, values[key], reference(key)) for name, key in keys.items()]


def _is_half(value: Any) -> bool:
    return is_ordinary(value) and value.dtype in _HALF and value.layout is torch.strided


def _is_near(average: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the first elements of a tensor are near those of the weight, and in memory of their own."""
    if not (has_numbers(average) and has_numbers(weight)) or average.data_ptr() == weight.data_ptr():
        return False

    def compare() -> bool:
        ours, theirs = (tensor.detach().reshape(-1)[:COMPARED_ELEMENTS].float().cpu() for tensor in (average, weight))
        return bool(torch.linalg.vector_norm(ours - theirs) <= MAX_DISTANCE_SHARE * torch.linalg.vector_norm(theirs))

    return unseen(compare, (average, weight))
