"""Reads the outputs of the operators of a loss, as far as they were saved or can be computed."""

from __future__ import annotations

import math
from itertools import chain

import torch

from ammeter.probes.origin.floats import Numbers, is_readable, measured
from ammeter.probes.origin.graph import operators, trial
from ammeter.probes.origin.graph.nodes import Node, again
from ammeter.probes.origin.graph.place import SELECTING

_RESHAPING = ("View", "UnsafeView", "Reshape", "ReshapeAlias", "Squeeze", "Unsqueeze", "Clone", "Alias")
"""Operators whose output has the elements of the input in the same order. A linear layer reshapes its input so."""

_INEXACT = ("Convolution", "NativeLayerNorm", "NativeBatchNorm", "NativeGroupNorm")
"""Operators whose expression leaves out a bias or an eps."""

MAX_DEPTH = 4
"""Operators in a row that are computed again for the operands of one."""

_LARGEST = {name: torch.finfo(getattr(torch, name)).max for name in ("float16", "bfloat16", "float32", "float64")}


class Outputs:
    """The outputs of the operators of one loss.

    Attributes:
        numbers: those of each operator's output, None where they are unknown.
    """

    def __init__(self, nodes: list[Node], consumers: list[list[tuple[int, int]]]) -> None:
        """Reads the outputs.

        Args:
            nodes: the operators, inputs before the operators that use them.
            consumers: (operator, which of its inputs) that use the output of each operator.
        """
        self._nodes, self._consumers = nodes, consumers
        self.numbers: list[Numbers | None] = []
        for at in range(len(nodes)):
            self.numbers.append(measured(self.tensor(at)) or self._bound(at))

    def tensor(self, at: int) -> torch.Tensor | None:
        """An output where it is saved: with its operator, as an operand of the next, or computed again.

        It is computed without a summand that is not in the graph, such as the bias of a frozen layer.
        """
        node = self._nodes[at]
        if node.parameter is not None:
            return node.parameter
        saved = self._saved(at)
        return self._again(node) if saved is None else saved

    def _again(self, node: Node) -> torch.Tensor | None:
        output = again(node)
        if output is None or node.kind != "Addmm" or node.inputs[0] < 0:
            return output
        summand = self.deduced(node.inputs[0])  # autocast casts a bias, which leaves no copy
        return None if summand is None else output + summand

    def deduced(self, at: int, depth: int = MAX_DEPTH) -> torch.Tensor | None:
        """An output as tensor() returns it, or computed again from outputs before it; with all its summands."""
        node = self._nodes[at]
        found = self._saved(at) if trial.lacks_summand(node) else self.tensor(at)
        if found is not None or not depth or trial.lacks_summand(node):
            return found if found is not None and is_readable(found) else None
        inputs = [self.deduced(behind, depth - 1) if behind >= 0 else None for behind in node.inputs]
        first = inputs[0] if inputs else None
        if node.kind in _RESHAPING and first is not None:
            return first.reshape(node.shape) if first.numel() == math.prod(node.shape) else None
        if node.kind == "ToCopy" and first is not None:
            return first.to(getattr(torch, node.dtype))
        operands = node.operands_with(inputs) if node.kind not in _INEXACT else None
        output = None if operands is None else operators.output(node.kind, operands)
        if node.kind == "Addmm" and output is not None:
            output = None if first is None else output + first
        return output if output is not None and tuple(output.shape) == node.shape else None

    def _bound(self, at: int) -> Numbers | None:
        """A bound for the output of an operator that passes finite numbers on, or adds two of them."""
        node = self._nodes[at]
        known = [self.numbers[behind] for behind in (behind for behind in self._nodes[at].inputs if behind >= 0)]
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
        node = self._nodes[at]
        if node.result is not None:
            return node.result
        saved = (self._as_operand(node, *use) for use in self._consumers[at])
        reshaped = (self._saved_reshaped(node, consumer) for consumer, _ in self._consumers[at])
        return next((tensor for tensor in chain(saved, reshaped) if tensor is not None), None)

    def _saved_reshaped(self, node: Node, consumer: int) -> torch.Tensor | None:
        tensor = self._saved(consumer) if self._nodes[consumer].kind in _RESHAPING else None
        is_whole = tensor is not None and tensor.numel() == math.prod(node.shape)
        return tensor.reshape(node.shape) if tensor is not None and is_whole else None

    def _as_operand(self, node: Node, consumer: int, position: int) -> torch.Tensor | None:
        tensor = self._nodes[consumer].operand_of_input(position)
        return tensor if tensor is not None and tuple(tensor.shape) == node.shape else None
