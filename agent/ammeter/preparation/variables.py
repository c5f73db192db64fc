"""Finds a checkpoint that the program read before it was observed, among the variables of its functions.

A program that imports ammeter only at watch() has loaded its checkpoint unobserved. What it read is often still a
variable, and the model has its weights. Nothing is kept, and no method of the program is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any

import torch

from ammeter.preparation.contents import Contents, contents_of
from ammeter.preparation.optimizer_state import saved_tensors
from ammeter.tensors.hidden_reads import has_numbers, unseen

MAX_FRAMES = 50
MAX_VARIABLES = 2000
"""Variables that are examined, those of modules included."""

MAX_ENTRIES = 64
"""Entries of a checkpoint. A larger dictionary is data or the state of a model."""

COMPARED_WEIGHTS = 3
COMPARED_ELEMENTS = 256
"""Weights that are compared with the checkpoint, and elements of each. Equal random numbers are no coincidence."""


def checkpoint_of(frame: FrameType | None, weights: Sequence[torch.Tensor]) -> Contents | None:
    """Returns the contents of a checkpoint with these weights and a used optimizer; None if no variable has one.

    Args:
        frame: The frame from which on the variables are examined, outwards.
        weights: The present weights of the model.
    """
    chosen = [weight for weight in weights if weight.dim() > 1 and has_numbers(weight)][:COMPARED_WEIGHTS]
    for value in _dictionaries(frame):
        if chosen and _has_used_optimizer(value) and unseen(partial(_has_weights, value, chosen), chosen):
            return contents_of(value)
    return None


def _dictionaries(frame: FrameType | None) -> Iterator[dict[Any, Any]]:
    """Yields the variables of all functions on the stack, and of their modules, that are small dictionaries."""
    examined, modules = 0, set[int]()
    for _ in range(MAX_FRAMES):
        if frame is None:
            return
        scopes = [_locals(frame)] if frame.f_locals is not frame.f_globals else []
        if id(frame.f_globals) not in modules:
            modules.add(id(frame.f_globals))
            scopes.append(list(frame.f_globals.values()))
        for values in scopes:
            examined += len(values)
            if examined > MAX_VARIABLES:
                return
            yield from (value for value in values if isinstance(value, dict) and dict.__len__(value) <= MAX_ENTRIES)
        frame = frame.f_back


def _locals(frame: FrameType) -> list[Any]:
    """Returns the values of a function's variables.

    Before Python 3.13 the frame keeps its copy of them, which would keep deleted variables alive, so it is emptied.
    """
    copied = frame.f_locals
    values = list(copied.values())
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(copied) is dict:
        copied.clear()
    return values


def _has_used_optimizer(saved: dict[Any, Any]) -> bool:
    """Whether an entry, or a member of one, is the state dict of an optimizer that has made a step."""
    entries = list(dict.values(saved))
    entries += [member for entry in entries if isinstance(entry, list | tuple) for member in entry[:MAX_ENTRIES]]
    return any(
        isinstance(entry, dict)
        and dict.keys(entry) >= {"state", "param_groups"}
        and next(saved_tensors(entry), None) is not None
        for entry in entries
    )


def _has_weights(saved: dict[Any, Any], weights: Sequence[torch.Tensor]) -> bool:
    """Whether copies of these weights are in a checkpoint. Tensors that share their memory are no copies."""
    tensors = [tensor for entry in dict.values(saved) if isinstance(entry, dict) for tensor in dict.values(entry)]
    plain = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor) and has_numbers(tensor)]
    return all(any(_is_copy(tensor, weight) for tensor in plain) for weight in weights)


def _is_copy(tensor: torch.Tensor, weight: torch.Tensor) -> bool:
    if tensor.shape != weight.shape or tensor.dtype != weight.dtype or tensor.data_ptr() == weight.data_ptr():
        return False
    first, second = (values.detach().reshape(-1)[:COMPARED_ELEMENTS].cpu() for values in (tensor, weight))
    return bool(first.any()) and torch.equal(first, second)
