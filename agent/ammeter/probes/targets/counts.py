"""Reads from the autograd graph of a loss whether its cross entropies have a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ammeter.torch_hooks.loss_graph import CRITERION, FACTOR, MAX_NODES, OWN, UNKNOWN, is_hooked, kind_of

_GUARDS = (
    *("NanToNumBackward", "ClampBackward", "ClampMinBackward", "ClampMaxBackward", "WhereBackward"),
    *("MaskedFillBackward", "MaskedSelectBackward", "StackBackward", "CatBackward"),
)
"""Nodes that guard a loss against NaN, or join several, begin with these names."""


def target_counts(root: torch.Tensor) -> list[torch.Tensor]:
    """Returns, for each cross entropy in a loss, numbers that are all zero if it has no target.

    Must be called before backward() frees the graph. They are the total weight of the targets, whether each is not
    ignored, or the mask of integers or booleans that the program multiplies the losses of the targets by.

    Returns:
        [] if anything else is part of the loss, or cannot be read.
    """
    counts: list[torch.Tensor] = []
    criteria, others = set[Any](), set[Any]()
    waiting: list[tuple[Any, torch.Tensor | None]] = [(root.grad_fn, None)]
    for _ in range(MAX_NODES):
        if not waiting:  # label smoothing adds a sum of the log-probabilities of the same criterion
            return counts if others <= criteria else []
        node, mask = waiting.pop()
        kind = kind_of(node)
        inputs = [function for function, _ in node.next_functions if function is not None] if node else []
        if kind is CRITERION:
            count = _target_count(node) if mask is None else mask
            if count is None:
                return []
            counts.append(count)
            criteria.update(inputs)
        elif not inputs or not _leaves_zero(node, kind) or (kind is FACTOR and len(inputs) > 1):
            others.add(node)
        else:
            mask = _mask(node) if kind is FACTOR and mask is None else mask
            waiting += [(function, mask) for function in inputs]
    return []


def lacks_targets(counts: Sequence[torch.Tensor]) -> bool:
    """Whether counts show that there is no target. On a device it waits for them."""
    return bool(counts) and not any_target(counts)


def any_target(counts: Sequence[torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return torch.stack([count.any() for count in counts]).any()


def _leaves_zero(node: Any, kind: str) -> bool:
    """Whether a node makes zero or NaN of losses that are all zero or NaN."""
    return kind not in (OWN, UNKNOWN) or type(node).__name__.startswith(_GUARDS)


def _target_count(node: Any) -> torch.Tensor | None:
    """Returns the total weight of a cross entropy's targets, or which of them it does not ignore."""
    if not hasattr(node, "_saved_total_weight"):
        return None
    if node._saved_reduction:
        weight: torch.Tensor | None = None if is_hooked(node, "_saved_total_weight") else node._saved_total_weight
        return weight
    if is_hooked(node, "_saved_target"):
        return None
    ignored = node._saved_ignore_index
    kept: torch.Tensor = node._saved_target != (ignored - 2**64 if ignored >= 2**63 else ignored)
    return kept


def _mask(node: Any) -> torch.Tensor | None:
    """Returns the integers or booleans by which a node multiplies the losses of several targets."""
    name = "_saved_other" if node.next_functions[0][0] is not None else "_saved_self"
    operand = None if is_hooked(node, name) else getattr(node, name, None)
    is_mask = isinstance(operand, torch.Tensor) and operand.numel() != 1 and not operand.is_floating_point()
    return operand if is_mask else None
