"""Examines the graph of a loss once: whether float16 takes part, and which constants may hide a scale."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any, NamedTuple

import torch

from ammeter.probes.call_order.marks import nodes, roots
from ammeter.recording.loss_shares import is_close
from ammeter.torch_hooks.loss_graph import constant_of, is_of_program

MAX_NODES = 1024
"""Nodes of the graph that are examined."""


MAX_SHAPED_NODES = 8
"""First nodes of the graph whose shapes are kept: the criterion, and what it compares."""

MAX_DIMENSIONS = 6
"""Shapes with more dimensions are left out."""


class Graph(NamedTuple):
    """Properties of a graph.

    Attributes:
        is_float16: whether gradients flow in float16.
        constants: factors and divisors in the graph.
        has_program_function: whether the loss passes a Function of the program before its graph branches.
        shapes: shapes of the tensors near the loss.
    """

    is_float16: bool = False
    constants: tuple[float, ...] = ()
    has_program_function: bool = False
    shapes: frozenset[tuple[int, ...]] = frozenset()

    def counts(self, factor: float) -> bool:
        """Whether a factor is the number of elements along some dimensions, as of the pixels of an image."""
        return any(
            math.prod(chosen) == factor
            for shape in self.shapes
            for count in range(1, len(shape) + 1)
            for chosen in combinations(shape, count)
        )

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
    is_float16, constants, shapes = graph.is_float16, list(graph.constants), set(graph.shapes)
    for number, node in enumerate(nodes(root, MAX_NODES)):
        metadata = getattr(node, "_input_metadata", ())
        if number < MAX_SHAPED_NODES:
            shapes.update(tuple(entry.shape) for entry in metadata if len(entry.shape) <= MAX_DIMENSIONS)
        is_float16 = is_float16 or any(entry.dtype is torch.float16 for entry in metadata)
        constant = constant_of(node)
        if constant is not None:
            constants.append(constant)
    has_program_function = graph.has_program_function or _passes_program_function(root)
    return Graph(is_float16, tuple(constants), has_program_function, frozenset(shapes))


def _passes_program_function(node: Any) -> bool:
    while True:
        if is_of_program(node):
            return True
        inputs = [ancestor for ancestor, _ in node.next_functions if ancestor is not None]
        if len(inputs) != 1:
            return False
        node = inputs[0]
