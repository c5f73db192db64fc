"""Keeps a bounded sample of an operator's operands, from which it can run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ammeter.preflight.stress.operators import Operator, is_float
from ammeter.probes.origin.graph.trial import MAX_ELEMENTS

MAX_ROWS = 64
"""Rows of an operator that computes each row alone: some from everywhere, and the one with the largest number."""

MAX_SAMPLE_ELEMENTS = 2**15
"""The same for an operator that computes each element alone."""

MAX_PRODUCTS = 2**30
"""Multiplications of one matrix product or convolution: about a second in half precision on one CPU core."""

Operands = tuple[list[Any], dict[str, Any]]


def of_call(operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Operands | None, str]:
    """Copies the operands.

    Returns:
        (operands, ""), or (None, the reason why the operator cannot run again).
    """
    given = [*args]
    if operator.shape == "elements" and _is_alone(args):
        given[0] = _elements(args[0])
    elif operator.shape == "rows":
        given = _rows(operator, given)
    tensors = [value for value in (*given, *kwargs.values()) if isinstance(value, torch.Tensor)]
    if sum(tensor.numel() for tensor in tensors) > MAX_ELEMENTS or _products(operator, given) > MAX_PRODUCTS:
        return None, "too large"
    if operator.name == "attention" and any(isinstance(value, float) and value > 0 for value in given[3:5]):
        return None, "random, because it has dropout"
    if not all(map(_is_plain, tensors)):
        return None, "a tensor with operators of its own"
    return ([_copy(value) for value in given], {name: _copy(value) for name, value in kwargs.items()}), ""


def absmax(tensor: torch.Tensor) -> float:
    """Returns the largest finite absolute value of a tensor, 0 if there is none."""
    numbers = tensor.detach().double()
    return float(torch.where(numbers.isfinite(), numbers.abs(), 0.0).max()) if numbers.numel() else 0.0


def _is_alone(args: Sequence[Any]) -> bool:
    return not any(isinstance(value, torch.Tensor) for value in args[1:])


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__ and not tensor.is_meta


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    """Elements from everywhere, the largest and the smallest one that is not zero."""
    flat = tensor.detach().reshape(-1)
    if len(flat) <= MAX_SAMPLE_ELEMENTS:
        return flat
    sizes = torch.where(flat.isfinite(), flat.abs(), 0)
    smallest = torch.where(sizes > 0, sizes, torch.inf).argmin()
    spread = torch.arange(0, len(flat), -(-len(flat) // MAX_SAMPLE_ELEMENTS), device=flat.device)
    return flat[torch.cat([spread, sizes.argmax().reshape(1), smallest.reshape(1)])]


def _rows(operator: Operator, args: list[Any]) -> list[Any]:
    """The arguments with a sample of rows, if the arguments show which dimension has the rows."""
    tensor = args[operator.main]
    tail = _tail(operator, tensor, args)
    if tail is None or (operator.name == "linear" and args[0].dim() != 1):
        return args
    flat = tensor.detach().reshape(-1, *tail)
    at = _chosen(flat) if len(flat) > MAX_ROWS else slice(None)
    args[operator.main] = flat[at]
    if operator.paired is not None:
        args[operator.paired] = args[operator.paired].detach().reshape(-1, *tail)[at]
    if "softmax" in operator.name:
        args[_dim_at(operator)] = 1
    return args


def _chosen(flat: torch.Tensor) -> torch.Tensor:
    """Rows from everywhere, and the one with the largest number."""
    sizes = flat.reshape(len(flat), -1).abs()
    largest = torch.where(sizes.isfinite(), sizes, 0).amax(1).argmax().reshape(1)
    return torch.cat([torch.arange(0, len(flat), -(-len(flat) // MAX_ROWS), device=flat.device), largest])


def _dim_at(operator: Operator) -> int:
    return 1 if operator.paired is None else operator.paired + 1


def _tail(operator: Operator, tensor: torch.Tensor, args: Sequence[Any]) -> torch.Size | None:
    """The shape of one row; None if a row is not in the last dimensions."""
    if "softmax" in operator.name:
        return (
            tensor.shape[-1:] if tensor.dim() and args[_dim_at(operator)] % tensor.dim() == tensor.dim() - 1 else None
        )
    if operator.name in ("layer_norm", "rms_norm"):
        return tensor.shape[-len(args[1]) :]
    return tensor.shape[1:] if tensor.dim() == 2 else None


def _products(operator: Operator, args: Sequence[Any]) -> int:
    if operator.name in ("matmul", "linear"):
        left, right = args[operator.main], args[operator.main + 1]
        return int(left.numel() * right.shape[-1])
    if operator.name == "convolution":
        image, weight = args[0], args[1]
        return int(image.shape[0] * image[0, 0].numel() * weight.numel())
    return 0


def _copy(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    copy = value.detach().clone()
    return copy.float() if is_float(copy) and copy.dtype is not torch.float64 else copy
