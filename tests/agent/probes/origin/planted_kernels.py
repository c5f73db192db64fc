"""Kernels that are wrong on one backend: replacements of torch's CPU kernels whose first element is NaN."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.nn import functional

Kernel = Callable[..., Any]


@contextmanager
def planted(operator: str, kernel: Kernel) -> Iterator[None]:
    """Replaces the CPU kernel of an operator of torch."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of a kernel that it had already
        library.impl(operator, kernel, "CPU")
    try:
        yield
    finally:
        library._destroy()


def spoiled(tensor: torch.Tensor) -> torch.Tensor:
    copy = tensor.clone(memory_format=torch.contiguous_format)
    copy.view(-1)[0] = math.nan
    return copy


def softmax(x: torch.Tensor, dim: int, _: bool) -> torch.Tensor:
    powers = (x - x.amax(dim, True)).exp()
    return spoiled(powers / powers.sum(dim, True))


def log_softmax(x: torch.Tensor, dim: int, _: bool) -> torch.Tensor:
    return spoiled(x - x.logsumexp(dim, True))


def gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    return spoiled(x / 2 * (1 + torch.erf(x / math.sqrt(2))))


def silu(x: torch.Tensor) -> torch.Tensor:
    return sigmoid_product(x, is_bad=True)


def sigmoid_product(x: torch.Tensor, is_bad: bool) -> torch.Tensor:
    product = x * torch.sigmoid(x)
    return spoiled(product) if is_bad else product


def mse_loss(x: torch.Tensor, target: torch.Tensor, reduction: int = 1) -> torch.Tensor:
    return spoiled((x - target).square().mean())


def layer_norm(x: torch.Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> tuple[torch.Tensor, ...]:
    mean, scale = x.mean(-1, True), (x.var(-1, correction=0, keepdim=True) + eps).rsqrt()
    return spoiled((x - mean) * scale), mean, scale


def group_norm(
    x: torch.Tensor, weight: Any, bias: Any, samples: int, channels: int, pixels: int, groups: int, eps: float
) -> tuple[torch.Tensor, ...]:
    rows = x.reshape(samples, groups, -1)
    mean, scale = rows.mean(-1, True), (rows.var(-1, correction=0, keepdim=True) + eps).rsqrt()
    return spoiled(((rows - mean) * scale).view_as(x)), mean.squeeze(-1), scale.squeeze(-1)


def batch_norm(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[torch.Tensor, ...]:
    mean, scale = x.mean((0, 2)), (x.var((0, 2), correction=0) + eps).rsqrt()
    return spoiled((x - mean[None, :, None]) * scale[None, :, None]), mean, scale


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    return spoiled(torch.softmax(scores, -1) @ value), scores.logsumexp(-1)


def logarithm(x: torch.Tensor) -> torch.Tensor:
    """Wrong in single precision only."""
    result = torch.log2(x) * math.log(2)
    return spoiled(result) if x.dtype == torch.float32 else result


def convolution(image: torch.Tensor, weight: torch.Tensor, bias: Any, *_: Any) -> torch.Tensor:
    columns = functional.unfold(image, weight.shape[-1]).transpose(1, 2) @ weight.flatten(1).t()
    side = image.shape[-1] - weight.shape[-1] + 1
    return spoiled(columns.transpose(1, 2).reshape(image.shape[0], weight.shape[0], side, side))


def spoiled_kernel(operator: str) -> Kernel:
    """The kernel of a backward pass by torch's formula, whose first result has NaN in its first element.

    A product of matrices has no other formula: its kernel is wrong in float32 only.
    """
    name = getattr(torch.ops.aten, operator)
    overload = name.default

    def kernel(*args: Any, **kwargs: Any) -> Any:
        results = _formula(operator, overload, *args, **kwargs)
        if operator == "mm" and results.dtype is torch.float64:
            return results
        return (spoiled(results[0]), *results[1:]) if isinstance(results, list | tuple) else spoiled(results)

    return kernel


def _formula(operator: str, overload: Any, *args: Any, **kwargs: Any) -> Any:
    if operator == "mm":
        return (args[0].unsqueeze(-1) * args[1]).sum(-2)
    if operator in ("tanh_backward", "_scaled_dot_product_flash_attention_for_cpu_backward"):
        return _own_formula(operator, *args, **kwargs)
    return decomposition_table[overload](*args, **kwargs)


def _own_formula(operator: str, *args: Any, **kwargs: Any) -> Any:
    if operator == "tanh_backward":
        gradient, output = args
        return gradient * (1 - output * output)
    gradient, query, key, value, output, *_ = args
    weights = torch.softmax(query @ key.mT / math.sqrt(query.shape[-1]), -1)
    inner = weights * (gradient @ value.mT - (gradient * output).sum(-1, keepdim=True)) / math.sqrt(query.shape[-1])
    return inner @ key, inner.mT @ query, weights.mT @ gradient
