"""The operators that lose range or precision in low precision, by the names of torch's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

Shape = Literal["elements", "rows", "whole"]


@dataclass(frozen=True)
class Operator:
    """How an operator is stressed.

    Attributes:
        name: as a program writes it.
        main: the operand that is made larger or smaller.
        divisor: the operand that is made smaller, if it is another one.
        paired: an operand whose rows belong to those of the main one.
        shape: whether each element, or each row of the last dimension, is computed alone, so that a sample is enough.
        masked: whether a row may be masked entirely.
        shifted: whether its result should not depend on a large offset in its rows, or hardly.
        reduces: whether it sums over a dimension, whose terms may cancel out.
    """

    name: str
    main: int = 0
    divisor: int | None = None
    paired: int | None = None
    shape: Shape = "whole"
    masked: bool = False
    shifted: bool = False
    reduces: bool = False


_ELEMENTWISE = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan"),
    *("sinh", "cosh", "acos", "asin", "atanh", "logit", "softplus", "square"),
)
_NORMS = {
    "native_layer_norm": "layer_norm",
    "_fused_rms_norm": "rms_norm",
    "native_batch_norm": "batch_norm",
    "_native_batch_norm_legit": "batch_norm",
    "_native_batch_norm_legit_functional": "batch_norm",
    "_batch_norm_with_update": "batch_norm",
    "cudnn_batch_norm": "batch_norm",
    "native_group_norm": "group_norm",
}
_ATTENTION = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
_LOSSES = {
    "nll_loss_forward": "nll_loss",
    "nll_loss2d_forward": "nll_loss",
    "mse_loss": "mse_loss",
    "smooth_l1_loss": "smooth_l1_loss",
    "huber_loss": "huber_loss",
    "soft_margin_loss": "soft_margin_loss",
    "binary_cross_entropy": "binary_cross_entropy",
    "binary_cross_entropy_with_logits": "binary_cross_entropy_with_logits",
}

TABLE = {
    **{name: Operator(name, shape="elements") for name in _ELEMENTWISE},
    **{
        name: Operator(
            shown, shape="rows" if shown in ("layer_norm", "rms_norm") else "whole", shifted=shown != "rms_norm"
        )
        for name, shown in _NORMS.items()
    },
    **{f"_scaled_dot_product_{name}": Operator("attention", masked=False) for name in _ATTENTION},
    **{name: Operator(shown) for name, shown in _LOSSES.items()},
    "_softmax": Operator("softmax", shape="rows", masked=True, shifted=True),
    "_log_softmax": Operator("log_softmax", shape="rows", masked=True, shifted=True),
    "logsumexp": Operator("logsumexp", masked=True),
    "pow": Operator("pow"),
    "div": Operator("division", divisor=1),
    "sum": Operator("sum", reduces=True),
    "mean": Operator("mean", reduces=True),
    "var": Operator("var", shifted=True),
    "std": Operator("std", shifted=True),
    "linalg_vector_norm": Operator("vector_norm"),
    "cumsum": Operator("cumsum", reduces=True),
    "mm": Operator("matmul", shape="rows", reduces=True),
    "addmm": Operator("linear", main=1, shape="rows", reduces=True),
    "bmm": Operator("matmul", reduces=True),
    "baddbmm": Operator("matmul", main=1, reduces=True),
    "convolution": Operator("convolution", reduces=True),
    "_softmax_backward_data": Operator("softmax backward", paired=1, shape="rows"),
    "_log_softmax_backward_data": Operator("log_softmax backward", paired=1, shape="rows"),
}
"""Kernel -> operator. Backward passes of norms and of attention are missing: they need numbers that the forward pass of
the same dtype has saved."""

IN_BACKWARD = ("_softmax_backward_data", "_log_softmax_backward_data", "div", "pow", "rsqrt", "reciprocal", "exp")

LONG_ELEMENTS = 128
"""Terms from which a sum or a mean is long: with fewer, its range is hardly more than that of its operand."""


def of_call(kernel: str, args: Sequence[Any], *, backward: bool) -> Operator | None:
    """Returns the operator that a call of a kernel computes, None if it is not sensitive."""
    operator = TABLE.get(kernel)
    if operator is None or (backward and kernel not in IN_BACKWARD):
        return None
    if len(args) <= operator.main or not is_float(args[operator.main]):
        return None
    if kernel == "div" and not (len(args) > 1 and is_float(args[1])):
        return None
    if kernel == "pow" and (len(args) < 2 or args[1] in (0, 1)) and not isinstance(args[1], torch.Tensor):
        return None
    return None if kernel in ("sum", "mean", "cumsum") and not _is_long(args) else operator


def is_float(value: Any) -> bool:
    """Whether a value is a tensor of real numbers."""
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 0


def _is_long(args: Sequence[Any]) -> bool:
    operand = args[0]
    dims = args[1] if len(args) > 1 and args[1] is not None else list(range(operand.dim()))
    terms = 1
    for dim in [dims] if isinstance(dims, int) else dims or range(operand.dim()):
        terms *= operand.shape[dim] if operand.dim() else 1
    return terms >= LONG_ELEMENTS
