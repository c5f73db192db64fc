"""Finds a checkpoint in memory that the program read before it was observed.

A program that imports ammeter only at watch() has loaded its checkpoint unobserved. What it read is often still in
memory, and the model has its weights. The search reads the list of containers that Python's garbage collector has, so
it looks into no frame: frames would keep variables alive, and change the result of locals(). It calls no method of
the program and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from ammeter.preparation.contents import Contents, contents_of
from ammeter.preparation.optimizer_state import saved_tensors
from ammeter.tensors.hidden_reads import has_numbers, unseen
from ammeter.tensors.live_objects import elements, live_objects

MAX_CONTAINERS = 200_000
"""Dictionaries and lists that are examined, the newest first. A process with torch has 40,000."""

MAX_ENTRIES = 64
"""Entries of a checkpoint. A larger dictionary is data or the state of a model."""

COMPARED_WEIGHTS = 3
COMPARED_ELEMENTS = 256
"""Weights that are compared with the checkpoint, and elements of each. Equal random numbers are no coincidence."""


def checkpoint_in_memory(weights: Sequence[torch.Tensor], strays: Iterable[torch.Tensor]) -> Contents | None:
    """Returns the contents of a checkpoint with these weights and a used optimizer; None if there is none.

    Args:
        weights: The present weights of the model.
        strays: Other tensors. Containers are searched only if one of these may be a copy of a weight.
    """
    chosen = [weight for weight in weights if weight.dim() > 1 and has_numbers(weight)][:COMPARED_WEIGHTS]
    may_exist = chosen and any(_is_alike(stray, chosen[0]) for stray in strays)
    for checkpoint in _checkpoints() if may_exist else ():
        if unseen(partial(_has_weights, checkpoint, chosen), chosen):
            return contents_of(checkpoint)
    return None


def _checkpoints() -> Iterator[dict[Any, Any]]:
    """Yields small dictionaries with the state dict of a used optimizer, directly or in a list; no module's globals."""
    newest = live_objects(dict, list)[: -MAX_CONTAINERS - 1 : -1]
    dictionaries = [value for value in newest if issubclass(type(value), dict)]
    states = {id(value) for value in dictionaries if _is_used_optimizer(value)}
    if not states:
        return
    for value in dictionaries:
        if dict.__len__(value) > MAX_ENTRIES or dict.__contains__(value, "__builtins__"):
            continue
        if any(id(part) in states or _has_one_of(part, states) for part in dict.values(value)):
            yield value


def _has_one_of(part: Any, wanted: set[int]) -> bool:
    """Whether a list or tuple has one of these objects."""
    if type(part) not in (list, tuple) or len(part) > MAX_ENTRIES:
        return False
    return not wanted.isdisjoint(map(id, elements(part)))


def _is_used_optimizer(value: dict[Any, Any]) -> bool:
    """Whether this is the state dict of an optimizer that has made a step."""
    is_state = dict.__contains__(value, "state") and dict.__contains__(value, "param_groups")
    return is_state and next(saved_tensors(value), None) is not None


def _has_weights(saved: dict[Any, Any], weights: Sequence[torch.Tensor]) -> bool:
    """Whether copies of these weights are in a checkpoint. Tensors that share their memory are no copies."""
    tensors = [tensor for entry in dict.values(saved) if isinstance(entry, dict) for tensor in dict.values(entry)]
    plain = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor) and has_numbers(tensor)]
    return all(any(_is_copy(tensor, weight) for tensor in plain) for weight in weights)


def _is_copy(tensor: torch.Tensor, weight: torch.Tensor) -> bool:
    if not _is_alike(tensor, weight) or tensor.data_ptr() == weight.data_ptr():
        return False
    first, second = (values.detach().reshape(-1)[:COMPARED_ELEMENTS].cpu() for values in (tensor, weight))
    return bool(first.any()) and torch.equal(first, second)


def _is_alike(tensor: torch.Tensor, weight: torch.Tensor) -> bool:
    return tensor.shape == weight.shape and tensor.dtype == weight.dtype
