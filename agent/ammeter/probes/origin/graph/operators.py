"""Computes operators of an autograd graph again, each by the expression that a program would write for it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from types import CodeType
from typing import Any

import torch

from ammeter.probes.origin.floats import is_readable

Values = Mapping[str, Any]
"""Operands of an operator by the names under which autograd saves them."""

EXPRESSIONS = {
    "Add": "self + alpha * other",
    "Sub": "self - alpha * other",
    "Mul": "self * other",
    "Div": "self / other",
    "T": "self.t()",
    "Transpose": "self.transpose(dim0, dim1)",
    "Abs": "torch.abs(self)",
    "Clamp": "torch.clamp(self, min, max)",
    "ClampMin": "torch.clamp(self, min=min)",
    "Pow": "torch.pow(self, exponent)",
    "Log": "torch.log(self)",
    "Log2": "torch.log2(self)",
    "Log10": "torch.log10(self)",
    "Log1P": "torch.log1p(self)",
    "Exp": "torch.exp(self)",
    "Expm1": "torch.expm1(self)",
    "Sqrt": "torch.sqrt(self)",
    "Rsqrt": "torch.rsqrt(self)",
    "Reciprocal": "torch.reciprocal(self)",
    "Sinh": "torch.sinh(self)",
    "Cosh": "torch.cosh(self)",
    "Acos": "torch.acos(self)",
    "Asin": "torch.asin(self)",
    "Atanh": "torch.atanh(self)",
    "Logit": "torch.logit(self, eps)",
    "Gelu": "F.gelu(self, approximate=approximate)",
    "Silu": "F.silu(self)",
    "Softplus": "F.softplus(self, beta, threshold)",
    "LogSigmoid": "F.logsigmoid(self)",
    "Mm": "self @ mat2",
    "Bmm": "self @ mat2",
    "Addmm": "mat1 @ mat2",
    "Convolution": "torch.convolution(input, weight, None, stride, padding, dilation, transposed, output_padding,"
    " groups)",
    "Softmax": "torch.softmax(self, dim)",
    "LogSoftmax": "torch.log_softmax(self, dim)",
    "Logsumexp": "torch.logsumexp(self, dim, keepdim)",
    "LinalgVectorNorm": "torch.linalg.vector_norm(self, ord, dim, keepdim)",
    "NativeLayerNorm": "F.layer_norm(input, normalized_shape, weight, bias)",
    "NativeGroupNorm": "F.group_norm(input, group, weight, None, eps)",
    "NativeBatchNorm": "F.batch_norm(input, *((None, None) if training else (running_mean, running_var)), weight, None,"
    " training, 0.0, eps)",
    "ScaledDotProductFlashAttentionForCpu": "F.scaled_dot_product_attention(query, key, value, attn_mask, 0.0,"
    " is_causal, scale=scale)",
    "NllLoss": "F.nll_loss(self, target, weight, ignore_index=ignore_index, reduction=reduction)",
    "MseLoss": "F.mse_loss(self, target, reduction=reduction)",
    "SmoothL1Loss": "F.smooth_l1_loss(self, target, reduction=reduction, beta=beta)",
    "HuberLoss": "F.huber_loss(self, target, reduction, delta)",
    "BinaryCrossEntropy": "F.binary_cross_entropy(self, target, weight, reduction=reduction)",
    "BinaryCrossEntropyWithLogits": "F.binary_cross_entropy_with_logits(self, target, weight, reduction=reduction,"
    " pos_weight=pos_weight)",
}
"""Operator -> its output from operands that autograd saves, or from its inputs. A summand, such as a bias, is left out:
whether the output is finite hardly ever depends on it."""

EXPRESSIONS["NllLoss2D"] = EXPRESSIONS["NllLoss"]

FUSED = (
    *("Gelu", "Silu", "Softplus", "LogSigmoid", "Softmax", "LogSoftmax", "Logsumexp", "LinalgVectorNorm"),
    *("Convolution", "NativeLayerNorm", "NativeGroupNorm", "NativeBatchNorm", "ScaledDotProductFlashAttentionForCpu"),
    *("NllLoss", "NllLoss2D", "MseLoss", "SmoothL1Loss", "HuberLoss"),
    *("BinaryCrossEntropy", "BinaryCrossEntropyWithLogits"),
)
"""Operators that consist of several others, by which they can be computed with other kernels."""

MEAN = 1
"""at::Reduction::Mean, as the operators of criteria save it."""


@functools.cache
def needs(kind: str) -> tuple[str, ...]:
    """The names of the operands in the expression of an operator; empty for an operator without one."""
    expression = ast.parse(EXPRESSIONS.get(kind, "()"), mode="eval")
    names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
    return tuple(sorted(names - {"torch", "F"}))


def output(kind: str, values: Values) -> torch.Tensor | None:
    """Computes an operator's output, without gradients.

    Returns:
        None if the operator is not known or cannot be computed, as without an operand, or from one whose shape
        broadcast has changed.
    """
    code = _code(kind)
    if code is None:
        return None
    names = {name: as_given(name, value) for name, value in values.items()}
    try:
        found = _special(kind, values)
        if found is None:
            found = eval(code, {"torch": torch, "F": torch.nn.functional}, names)
    except (ArithmeticError, AssertionError, LookupError, NameError, RuntimeError, TypeError, ValueError):
        return None
    return found if isinstance(found, torch.Tensor) and is_readable(found) else None


def _special(kind: str, values: Values) -> torch.Tensor | None:
    """Outputs that some of the operands determine: of a quotient without its dividend, of a mean over no targets."""
    if kind == "Div" and values.get("self") is None:
        below = torch.as_tensor(values["other"])
        quotient = torch.ones_like(below) / below
        if torch.isfinite(quotient).all():
            raise KeyError("self")
        return quotient
    if kind.startswith("NllLoss"):
        total = values.get("total_weight")
        if isinstance(total, torch.Tensor) and values["reduction"] == MEAN and total.numel() == 1 and total == 0:
            return 0 / total
    return None


def as_given(name: str, value: Any) -> Any:
    """Returns an operand as a program gives it.

    Autograd saves negative integers, such as dim=-1, without their sign, and the reduction of a criterion as a number.
    """
    if name == "reduction":
        return ("none", "mean", "sum")[value]
    if isinstance(value, list | tuple):
        return [as_given("", element) for element in value]
    return value - 2**64 if isinstance(value, int) and value >= 2**63 else value


@functools.cache
def _code(kind: str) -> CodeType | None:
    expression = EXPRESSIONS.get(kind)
    return compile(expression, f"<{kind}>", "eval") if expression else None
