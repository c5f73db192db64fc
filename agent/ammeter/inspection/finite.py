"""Checks that the numbers of tensors are finite, a chunk at a time, so that no copy of a large tensor is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ammeter.preparation.contents import is_optimizer_state

CHUNK_ELEMENTS = 2**20
"""Number of elements checked at once."""

MAX_DEPTH = 12


def tensors_in(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields each tensor with its path, such as model.head.weight."""
    if isinstance(value, torch.Tensor):
        yield name or "it", value
    elif depth < MAX_DEPTH and isinstance(value, dict | list | tuple):
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        for key, element in inside:
            yield from tensors_in(element, f"{name}.{key}" if name else str(key), depth + 1)


def weights_in(value: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields path and shape of each tensor outside the state of an optimizer, which has the shapes of the weights."""
    pending: list[tuple[str, Any, int]] = [("", value, 0)]
    while pending:
        name, inner, depth = pending.pop()
        if isinstance(inner, torch.Tensor):
            yield name, tuple(inner.shape)
        elif depth < MAX_DEPTH and isinstance(inner, dict | list | tuple) and not is_optimizer_state(inner):
            inside = inner.items() if isinstance(inner, dict) else enumerate(inner)
            pending += [(f"{name}.{key}" if name else str(key), element, depth + 1) for key, element in inside]


def is_finite(tensor: torch.Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.layout is not torch.strided:
        return True
    flat = tensor.detach().reshape(-1)
    return all(bool(torch.isfinite(_checkable(part)).all()) for part in torch.split(flat, CHUNK_ELEMENTS))


def _checkable(part: torch.Tensor) -> torch.Tensor:
    """torch.isfinite has no kernel for the formats of eight bits."""
    return part.float() if part.element_size() == 1 else part
