"""Recognizes a mean over no targets in the graph of a loss: 0/0, because all targets are ignored or masked."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ammeter.probes.origin.graph.nodes import Node
from ammeter.probes.origin.graph.operators import MEAN

_CRITERIA = (
    *("NllLoss", "NllLoss2D", "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits"),
    *("MseLoss", "SmoothL1Loss", "HuberLoss"),
)
"""Operators that return one loss per target, or their sum."""

_SELECTING = (
    *("Sum", "Mul", "Index", "MaskedSelect", "MaskedFill", "Where", "View", "UnsafeView", "ReshapeAlias"),
    *("Squeeze", "Unsqueeze", "Clone", "Alias", "Select", "Slice", "Transpose", "Permute", "ToCopy", "Neg", "Gather"),
)
"""Operators between a criterion and the division by the number of its targets."""


def is_mean_over_none(node: Node) -> bool:
    """Whether a cross entropy divides by a total weight of zero. Its sum over no targets is a finite zero."""
    total = node.operands.get("total_weight")
    if not isinstance(total, torch.Tensor) or node.operands.get("reduction") != MEAN:
        return False
    return _is_zero(total)


def is_quotient_of_none(nodes: Sequence[Node], at: int) -> bool:
    """Whether the losses of a criterion are averaged by the program over none of them.

    Such a mean selects no element, or divides by a count of zero that no operator of the graph made. The caller knows
    that the result is NaN, so that the numerator is zero, too.
    """
    node = nodes[at]
    behind = node.inputs[0] if node.inputs else -1
    if behind < 0:
        return False
    if node.kind == "Mean":
        return 0 in nodes[behind].shape and _leads_to_criterion(nodes, behind)
    divisor = node.operands.get("other")
    if node.kind != "Div" or divisor is None or any(place >= 0 for place in node.inputs[1:]):
        return False
    return _is_zero(torch.as_tensor(divisor)) and _leads_to_criterion(nodes, behind)


def _is_zero(tensor: torch.Tensor) -> bool:
    """Whether a tensor on the host is zero; reading another device would wait for it."""
    return tensor.is_cpu and bool(tensor.eq(0).all())


def _leads_to_criterion(nodes: Sequence[Node], at: int) -> bool:
    """Whether an output consists of selected or summed losses of a criterion.

    The log-probabilities that gather() selects by the targets are such losses, too.
    """
    is_gathered = False
    while nodes[at].kind in _SELECTING:
        is_gathered = is_gathered or nodes[at].kind == "Gather"
        made = [place for place in nodes[at].inputs if place >= 0]
        if len(made) != 1:
            return False
        (at,) = made
    if nodes[at].kind == "LogSoftmax":
        return is_gathered
    reduction = nodes[at].operands.get("reduction")
    return nodes[at].kind in _CRITERIA and reduction is not None and reduction != MEAN
