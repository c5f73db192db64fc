"""Copies the autograd graph of a loss: its operators, their order, and the numbers that they saved for backward.

Nothing of the program runs: saved tensors with hooks, such as those of checkpoint(), are not read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from ammeter.probes.origin.graph import operators
from ammeter.torch_hooks import loss_graph

MAX_NODES = 20_000
"""Operators of a loss that are examined, to bound the time with unrolled loops."""

_POSITIONS = {
    "self": 0,
    "input": 0,
    "query": 0,
    "tensor1": 1,
    "tensor2": 2,
    "key": 1,
    "other": 1,
    "value": 2,
    "mat1": 1,
    "mat2": 1,
    "batch1": 1,
    "batch2": 2,
    "vec": 1,
    "exponent": 1,
    "weight": 1,
}
"""Saved operand -> its place among the inputs of its operator."""

_POSITIONS_BACKWARD = {"grad_output": 0, "grad_out": 0, "self": 1, "input": 1, "result": 1, "output": 1}
"""The same for the operators of a recorded backward pass."""

_ADDED = ("Addmm", "Addbmm", "Addmv")
"""Operators whose first input is the summand and not a factor."""

_RESULTS = ("_saved_result", "_saved_out", "_saved_output")

_NAME = re.compile(r"(\w+?)Backward\d*$")


class Node(msgspec.Struct):
    """An operator of the graph.

    Attributes:
        op: its autograd name, such as SoftmaxBackward0.
        kind: the operator, such as Softmax.
        inputs: indices of the operators that made its inputs, -1 for a tensor without a graph.
        dtype: dtype of its output.
        shape: shape of its output.
        parameter: the weight that this leaf accumulates a gradient for.
        operands: the saved operands that can be read, by name.
        is_hidden: whether some cannot be read: those of a custom function, with hooks, or changed in place since.
    """

    op: str
    kind: str
    inputs: list[int]
    dtype: str
    shape: tuple[int, ...]
    grad_fn: Any
    parameter: torch.Tensor | None = None
    operands: dict[str, Any] = msgspec.field(default_factory=dict)
    is_hidden: bool = False

    def operand_of_input(self, position: int) -> torch.Tensor | None:
        """The saved tensor that is this input, if there is one."""
        for name, value in self.operands.items():
            if isinstance(value, torch.Tensor) and self.position(name) == position:
                return value
        return None

    def operands_with(self, inputs: Sequence[torch.Tensor | None]) -> dict[str, Any] | None:
        """The operands of the operator's expression: those that were saved, and the inputs in the place of others.

        Returns:
            None if one is missing.
        """
        found, names = dict(self.operands), operators.needs(self.kind)
        for name in names:
            at = self.position(name)
            if found.get(name) is None and 0 <= at < len(inputs) and inputs[at] is not None:
                found[name] = inputs[at]
        return found if found.keys() >= set(names) else None

    def position(self, name: str) -> int:
        if self.kind in _ADDED and name == "mat2":
            return 2
        return (_POSITIONS_BACKWARD if self.is_gradient else _POSITIONS).get(name, -1)

    @property
    def is_gradient(self) -> bool:
        """Whether it belongs to a backward pass that autograd.grad() recorded with create_graph=True."""
        return "BackwardBackward" in self.op or "BackwardDataBackward" in self.op

    @property
    def result(self) -> torch.Tensor | None:
        if self.is_gradient:  # it has saved the result of the forward pass
            return None
        value = next((getattr(self.grad_fn, name) for name in _RESULTS if self._saves(name)), None)
        return value if isinstance(value, torch.Tensor) and tuple(value.shape) == self.shape else None

    def _saves(self, name: str) -> bool:
        return hasattr(type(self.grad_fn), name) and not loss_graph.is_hooked(self.grad_fn, name)


def nodes_of(root: Any, *, reads: bool = True) -> list[Node]:
    """Returns the operators of a loss, inputs before the operators that use them.

    Args:
        reads: whether to read their operands, which then exist as long as the result.

    Returns:
        An empty list if there are more than MAX_NODES.
    """
    order = _ordered(root.grad_fn)
    places = {id(grad_fn): place for place, grad_fn in enumerate(order)}
    return [_node(grad_fn, places, reads) for grad_fn in order]


def _ordered(root: Any) -> list[Any]:
    """The graph's nodes, each after its inputs. Without recursion, because graphs are deep."""
    order: list[Any] = []
    seen: dict[int, Any] = {}
    stack = [(root, False)]
    while stack:
        grad_fn, is_complete = stack.pop()
        if is_complete:
            order.append(grad_fn)
        elif grad_fn is not None and id(grad_fn) not in seen:
            seen[id(grad_fn)] = grad_fn
            if len(seen) > MAX_NODES:
                return []
            stack.append((grad_fn, True))
            stack += [(behind, False) for behind, _ in reversed(grad_fn.next_functions)]
    return order


def _node(grad_fn: Any, places: dict[int, int], reads: bool) -> Node:
    op = grad_fn.name().rpartition("::")[2]
    match = _NAME.match(op)
    is_own = isinstance(grad_fn, torch._C._FunctionBase)
    made = (getattr(grad_fn, "_input_metadata", None) or [None])[0]
    return Node(
        op,
        match[1] if match and not is_own else op,
        [places.get(id(behind), -1) for behind, _ in grad_fn.next_functions],
        str(made.dtype).removeprefix("torch.") if made is not None else "",
        tuple(made.shape) if made is not None else (),
        grad_fn,
        getattr(grad_fn, "variable", None),
        *(({}, True) if is_own or not reads else _operands(grad_fn)),
    )


def _operands(grad_fn: Any) -> tuple[dict[str, Any], bool]:
    names = _saved_names(type(grad_fn))
    readable = [name for name in names if not loss_graph.is_hooked(grad_fn, name)]
    is_hidden = len(readable) < len(names)
    return {name.removeprefix("_saved_"): getattr(grad_fn, name) for name in readable}, is_hidden


def _saved_names(kind: type) -> Sequence[str]:
    """Names of the operands that operators of a class save; their sizes and strides are left out."""
    if kind not in _names:
        saved = (name for name in dir(kind) if name.startswith("_saved_") and "_sym_" not in name)
        _names[kind] = tuple(name for name in saved if name not in _RESULTS)
    return _names[kind]


_names: dict[type, tuple[str, ...]] = {}


def again(node: Node) -> torch.Tensor | None:
    """Computes an operator's output from its saved operands, without gradients; None if one of them is missing."""
    return operators.output(node.kind, node.operands) if node.kind in _AGAIN else None


_AGAIN = (
    *("Div", "Mul", "Pow", "Log", "Log2", "Log10", "Log1P", "Gelu", "Silu"),
    *("Mm", "Bmm", "Addmm", "NllLoss", "NllLoss2D"),
)
"""Operators that are computed again to read a graph; the output of others is mostly saved."""
