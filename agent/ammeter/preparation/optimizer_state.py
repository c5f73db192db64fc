"""Counts the tensors in the state of an optimizer, live or saved. No number of a tensor is read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch

_COMPENSATING = re.compile("kahan|compensat|stochastic_round", re.IGNORECASE)
"""Names of options and of state in optimizers that keep what the rounding of half-precision weights loses: torchao,
torchdistx, optimi and pytorch_optimizer."""


def compensates(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether an optimizer uses Kahan summation or stochastic rounding, by the names of options and state."""
    state = next((state for state in optimizer.state.values() if isinstance(state, dict)), {})
    settings = [vars(optimizer), *optimizer.param_groups, state]
    named = (value for names in settings for name, value in names.items() if is_compensation(str(name)))
    return any(value is not None and value is not False for value in named)


def is_compensation(name: str) -> bool:
    """Returns whether an option or a state has the name of such a method. What it keeps is small and may be in half."""
    return _COMPENSATING.search(name) is not None


def restored_counts(optimizer: torch.optim.Optimizer, state_dict: Any) -> dict[str, Any]:
    """Returns the elements by dtype in a state dict and in the state that an optimizer loaded from it.

    Loading casts the saved state to the dtype of the weights without a message.
    """
    state = elements_by_dtype(tensor for _, _, tensor in state_tensors(optimizer))
    saved = elements_by_dtype(saved_tensors(state_dict))
    return {"optimizer": type(optimizer).__name__, "state": state, "saved": saved}


def state_tensors(optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, str, torch.Tensor]]:
    """Yields (parameter, name, state) for the state tensors with dimensions; a step counter has none."""
    for parameter, state in optimizer.state.items():
        if isinstance(parameter, torch.Tensor) and isinstance(state, dict):
            for name, tensor in state.items():
                if isinstance(tensor, torch.Tensor) and tensor.dim() > 0:
                    yield parameter, str(name), tensor


def saved_tensors(state_dict: Any) -> Iterator[torch.Tensor]:
    """Yields the state tensors with dimensions of an optimizer's state dict."""
    states = state_dict.get("state") if isinstance(state_dict, dict) else None
    for state in states.values() if isinstance(states, dict) else ():
        for tensor in state.values() if isinstance(state, dict) else ():
            if isinstance(tensor, torch.Tensor) and tensor.dim() > 0:
                yield tensor


def elements_by_dtype(tensors: Iterable[torch.Tensor]) -> dict[str, int]:
    """Returns the number of elements by dtype."""
    counts: Counter[str] = Counter()
    for tensor in tensors:
        if not torch.nn.parameter.is_lazy(tensor):
            counts[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    return dict(sorted(counts.items()))
