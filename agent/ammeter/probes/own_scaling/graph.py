"""Examines the graph of a loss once: whether float16 takes part, and which constants may hide a scale."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ammeter.probes.call_order.marks import nodes, roots
from ammeter.recording.loss_shares import is_close
from ammeter.torch_hooks.loss_graph import constant_of, is_of_program

MAX_NODES = 1024
"""Nodes of the graph that are examined."""


class Graph(NamedTuple):
    """Properties of a graph.

    Attributes:
        is_float16: whether gradients flow in float16.
        constants: factors and divisors in the graph.
        has_program_function: whether the loss passes a Function of the program before its graph branches.
    """

    is_float16: bool = False
    constants: tuple[float, ...] = ()
    has_program_function: bool = False

    def may_hide(self, scale: float) -> bool:
        """Whether the loss may be multiplied by the scale where its factors do not show it."""
        shown = any(is_close(abs(number), scale) or is_close(abs(number), 1 / scale) for number in self.constants)
        return shown or self.has_program_function


def examine(tensors: Any) -> Graph:
    """Examines the graph behind the arguments of backward(), before backward() frees it."""
    graph = Graph()
    for root in roots(tensors):
        if root.grad_fn is not None:
            graph = _examined(root.grad_fn, graph)
    return graph


def _examined(root: Any, graph: Graph) -> Graph:
    is_float16, constants = graph.is_float16, list(graph.constants)
    for node in nodes(root, MAX_NODES):
        metadata = getattr(node, "_input_metadata", ())
        is_float16 = is_float16 or any(entry.dtype is torch.float16 for entry in metadata)
        constant = constant_of(node)
        if constant is not None:
            constants.append(constant)
    return Graph(is_float16, tuple(constants), graph.has_program_function or _passes_program_function(root))


def _passes_program_function(node: Any) -> bool:
    while True:
        if is_of_program(node):
            return True
        inputs = [ancestor for ancestor, _ in node.next_functions if ancestor is not None]
        if len(inputs) != 1:
            return False
        node = inputs[0]
