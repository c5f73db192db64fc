"""Reads the outputs of the operators of a loss, as far as they were saved or can be computed."""

from __future__ import annotations

import math
from itertools import chain

import torch

from ammeter.probes.origin.floats import Numbers, measured
from ammeter.probes.origin.graph_nodes import Node, again
from ammeter.probes.origin.graph_place import SELECTING

_RESHAPING = ("View", "UnsafeView", "Reshape", "ReshapeAlias", "Squeeze", "Unsqueeze", "Clone", "Alias")
"""Operators whose output has the elements of the input in the same order. A linear layer reshapes its input so."""

_LARGEST = {name: torch.finfo(getattr(torch, name)).max for name in ("float16", "bfloat16", "float32", "float64")}


def outputs_of(nodes: list[Node], consumers: list[list[tuple[int, int]]]) -> list[Numbers | None]:
    """The numbers of each operator's output, None where they are unknown.

    Args:
        nodes: the operators, inputs before the operators that use them.
        consumers: (operator, which of its inputs) that use the output of each operator.
    """
    outputs = _Outputs(nodes, consumers)
    for at in range(len(nodes)):
        outputs.numbers.append(outputs.read(at) or outputs.bound(at))
    return outputs.numbers


class _Outputs:
    def __init__(self, nodes: list[Node], consumers: list[list[tuple[int, int]]]) -> None:
        self.nodes, self.consumers = nodes, consumers
        self.numbers: list[Numbers | None] = []

    def read(self, at: int) -> Numbers | None:
        """Reads an output where it is saved: with its operator, as an operand of the next, or computed again."""
        node = self.nodes[at]
        if node.parameter is not None:
            return measured(node.parameter)
        tensor = self._saved(at)
        return measured(again(node) if tensor is None else tensor)

    def bound(self, at: int) -> Numbers | None:
        """A bound for the output of an operator that passes finite numbers on, or adds two of them."""
        node = self.nodes[at]
        known = [self.numbers[behind] for behind in (behind for behind in self.nodes[at].inputs if behind >= 0)]
        finite = [numbers.absmax for numbers in known if numbers is not None and not numbers.bad]
        if len(finite) < len(node.inputs) or node.dtype not in _LARGEST:
            return None
        if len(finite) == 1 and node.kind in (*SELECTING, "ToCopy"):
            bound = finite[0]
        elif len(finite) == 2 and node.kind in ("Add", "Sub"):
            bound = finite[0] + abs(float(node.operands.get("alpha", 1))) * finite[1]
        else:
            return None
        return Numbers(bound, 0, 0, 0, -1) if bound <= _LARGEST[node.dtype] else None

    def _saved(self, at: int) -> torch.Tensor | None:
        node = self.nodes[at]
        if node.result is not None:
            return node.result
        saved = (self._as_operand(node, *use) for use in self.consumers[at])
        reshaped = (self._saved_reshaped(node, consumer) for consumer, _ in self.consumers[at])
        return next((tensor for tensor in chain(saved, reshaped) if tensor is not None), None)

    def _saved_reshaped(self, node: Node, consumer: int) -> torch.Tensor | None:
        tensor = self._saved(consumer) if self.nodes[consumer].kind in _RESHAPING else None
        is_whole = tensor is not None and tensor.numel() == math.prod(node.shape)
        return tensor.reshape(node.shape) if tensor is not None and is_whole else None

    def _as_operand(self, node: Node, consumer: int, position: int) -> torch.Tensor | None:
        tensor = self.nodes[consumer].operand_of_input(position)
        return tensor if tensor is not None and tuple(tensor.shape) == node.shape else None
