"""Runs the operator that made a NaN or an Inf again from its operands, to tell its numbers from its kernel.

It runs twice as it was, and once in float64 with other kernels. None of the results reaches the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode

from ammeter.probes.origin.floats import Numbers, measured
from ammeter.probes.origin.graph import operators
from ammeter.probes.origin.graph.nodes import Node

MAX_ELEMENTS = 2**22
"""Elements of all operands together, and of attention scores: a copy in float64 has 32 MiB at most."""

KERNEL_MARGIN = 0.5
"""Share of a dtype's range. If the exact result is within it, the range is no reason for an Inf: left-out summands and
rounding do not double a result."""

FLAT = 1e-6
"""Variance of a row below which the output of a normalization depends on its eps, which autograd does not save."""

RANGE, UNDEFINED, ROUNDED = "range", "undefined", "rounded"
KERNEL, DIFFERS, UNSTEADY = "kernel", "differs", "unsteady"


class Trial(NamedTuple):
    """What an operator does when it runs again.

    Attributes:
        kind, operands: the operator and what it received, by the names in the expression.
        answer: `range`: it is finite in float64, but too large for its dtype. `undefined`: it is not finite in float64
            either. `kernel`: its result in float64 fits its dtype, but its kernel makes NaN or Inf again. `differs`:
            in one of two runs and not in the other. `unsteady`: in neither, only in the training. `rounded`, of a
            backward pass: it is finite in float64 as a whole, but divides by what its dtype has rounded to zero.
        absmax: largest number of the output in float64; None if it is not finite.
        expression: what computes the output from the operands; empty if that is not known.
    """

    kind: str
    operands: Mapping[str, Any]
    answer: str
    absmax: float | None = None
    expression: str = ""


def of_operator(node: Node, inputs: Sequence[torch.Tensor | None], made: Numbers | None) -> Trial | None:
    """Runs an operator again.

    Args:
        node: the operator.
        inputs: the outputs of the operators before it, None where unknown.
        made: the numbers of its output, None if the output was not read.

    Returns:
        None if an operand is missing, too large or not finite, or if the result decides nothing.
    """
    operands = node.operands_with(inputs)
    if operands is None or not _is_fit(node.kind, operands):
        return None
    runs = [measured(operators.output(node.kind, operands)) for _ in range(2)]
    if any(run is None for run in runs):
        return None
    exact = _exact(node.kind, operands)
    if exact is None:
        return None
    expression = operators.EXPRESSIONS[node.kind]
    operands = {name: operators.as_given(name, operands[name]) for name in operators.needs(node.kind)}
    if exact.bad:
        return Trial(node.kind, operands, UNDEFINED, None, expression)
    largest = torch.finfo(getattr(torch, node.dtype)).max
    bad = [run is not None and run.bad for run in runs]
    if exact.absmax > largest:
        return Trial(node.kind, operands, RANGE, exact.absmax, expression) if all(bad) else None
    if made is None or is_near_range(exact.absmax, largest, operands) or lacks_summand(node):
        return None
    answer = KERNEL if all(bad) else DIFFERS if any(bad) else UNSTEADY
    return Trial(node.kind, operands, answer, exact.absmax, expression)


def lacks_summand(node: Node) -> bool:
    """Whether an operator has, or may have, a summand that the graph does not show: the bias of a frozen layer.

    A NaN in it is no fault of the operator, whose expression leaves the summand out.
    """
    at = _SUMMANDS.get(node.kind)
    if at is None or len(node.inputs) <= at or node.inputs[at] >= 0:
        return False
    if node.kind == "Convolution":
        sizes = getattr(node.grad_fn, "_saved_bias_sym_sizes_opt", ())  # (0,) without a bias
        return sizes is not None and tuple(sizes) != (0,)
    return node.kind == "Addmm" or node.operands.get("weight") is not None  # a norm has both or neither


_SUMMANDS = {"Addmm": 0, "Convolution": 2, "NativeBatchNorm": 2, "NativeGroupNorm": 2}
"""Operator -> which of its inputs is a summand that its expression leaves out."""


def is_near_range(exact: float, largest: float, operands: Mapping[str, Any]) -> bool:
    """Whether the range of a dtype may be the reason for an Inf, although the exact result is within it.

    Kernels add numbers or their squares in float32, as for a mean or a norm: such a sum may exceed it although the
    result does not.
    """
    tensors = [value for value in operands.values() if isinstance(value, torch.Tensor)]
    read = [(numbers.absmax, tensor.numel()) for tensor in tensors if (numbers := measured(tensor)) is not None]
    sums = [max(absmax, absmax * absmax) * count for absmax, count in read]
    return exact > KERNEL_MARGIN * largest or max(sums, default=0.0) > torch.finfo(torch.float32).max


def _is_fit(kind: str, operands: Mapping[str, Any]) -> bool:
    """Whether an operator can run again: finite operands of moderate size, no random numbers, no unknown eps."""
    tensors = [value for value in operands.values() if isinstance(value, torch.Tensor)]
    if not all(tensor.is_cpu for tensor in tensors) or sum(map(torch.Tensor.numel, tensors)) > MAX_ELEMENTS:
        return False
    if any(numbers.bad for numbers in map(measured, tensors) if numbers is not None and not numbers.masked):
        return False
    if kind == "ScaledDotProductFlashAttentionForCpu":
        rows = operands["query"].numel() // max(1, operands["query"].shape[-1])
        return not operands["dropout_p"] and rows * operands["key"].shape[-2] <= MAX_ELEMENTS
    if kind == "NativeLayerNorm":
        of_rows = tuple(range(-len(operands["normalized_shape"]), 0))
        return bool((operands["input"].double().var(of_rows, correction=0) > FLAT).all())
    return bool(tensors)


def _exact(kind: str, operands: Mapping[str, Any]) -> Numbers | None:
    """The output in float64, with other kernels where those of float64 do not give a finite one."""
    double = {name: _as_double(value) for name, value in operands.items()}
    numbers = measured(operators.output(kind, double))
    if kind not in operators.FUSED or (numbers is not None and not numbers.bad):
        return numbers
    with Formulas():  # type: ignore[no-untyped-call]
        return measured(operators.output(kind, double))


def _as_double(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


class Formulas(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes operators by torch's formulas for them, from simpler operators, instead of by their kernels."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = partial(decomposition_table.get(function, function), *args, **(kwargs or {}))
        result = call()
        return function(*args, **(kwargs or {})) if result is NotImplemented else result
