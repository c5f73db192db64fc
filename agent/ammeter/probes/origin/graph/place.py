"""Finds the module whose forward() has an operator of a loss's graph, from the weights around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ammeter.probes.origin.graph.nodes import Node

SELECTING = (
    *("View", "UnsafeView", "Reshape", "ReshapeAlias", "Squeeze", "Unsqueeze", "Clone", "Alias", "Permute", "T"),
    *("Transpose", "Select", "Slice", "Expand", "AsStrided", "Split", "Chunk", "Unbind", "Index", "Neg"),
)
"""Operators whose output consists of elements of the input."""

PASSING = (
    *SELECTING,
    *("Relu", "LeakyRelu", "Threshold", "MaxPool2D", "MaxPool2DWithIndices"),
)
"""Operators whose output has a NaN or an Inf only if an input has one."""

Names = Callable[[torch.Tensor], str]


class Graph:
    """The operators of a loss.

    Attributes:
        consumers: (operator, which of its inputs) that use the output of each operator.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.consumers: list[list[tuple[int, int]]] = [[] for _ in nodes]
        for at, node in enumerate(nodes):
            for position, behind in enumerate(node.inputs):
                if behind >= 0:
                    self.consumers[behind].append((at, position))

    def inputs(self, at: int) -> list[int]:
        return [behind for behind in self.nodes[at].inputs if behind >= 0]


def of_operator(graph: Graph, at: int, name_of: Names, is_module: Callable[[str], bool]) -> dict[str, Any]:
    """The module whose forward() has the operator: it has weights before the operator and behind it."""
    own = _own_weights(graph, at, name_of)
    if own:
        common = own[0].split(".")[:-1]
        for name in own[1:]:
            common = _common(common, name.split(".")[:-1])
        return {"module": ".".join(common)}
    before = _nearest(graph, at, name_of, graph.inputs)
    after = _nearest(graph, at, name_of, lambda place: [consumer for consumer, _ in graph.consumers[place]])
    if not after:
        return {"module": "", "behind": before.rpartition(".")[0] or before}
    common = _common(before.split(".")[:-1], after.split(".")[:-1])
    while common and not is_module(".".join(common)):
        common = common[:-1]
    return {"module": ".".join(common)}


def _own_weights(graph: Graph, at: int, name_of: Names) -> list[str]:
    """Names of the weights that an operator uses, cast or transposed or not."""
    names = []
    for behind in graph.inputs(at):
        while graph.nodes[behind].kind in (*PASSING, "ToCopy") and len(graph.inputs(behind)) == 1:
            (behind,) = graph.inputs(behind)
        parameter = graph.nodes[behind].parameter
        names += [name_of(parameter)] if parameter is not None else []
    return [name for name in names if name]


def _nearest(graph: Graph, at: int, name_of: Names, onward: Callable[[int], Sequence[int]]) -> str:
    """The name of the weight of the nearest operator that has one, '' if there is none."""
    waiting, seen = [at], {at}
    for place in waiting:
        names = _own_weights(graph, place, name_of)
        if names:
            return names[0]
        fresh = [further for further in dict.fromkeys(onward(place)) if further not in seen]
        seen.update(fresh)
        waiting += fresh
    return ""


def _common(left: Sequence[str], right: Sequence[str]) -> list[str]:
    common = []
    for part, other in zip(left, right, strict=False):
        if part != other:
            break
        common.append(part)
    return common
