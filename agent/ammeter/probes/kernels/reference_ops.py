"""The operators that are computed again in float32, by their part in a float32 reference."""

from __future__ import annotations

import torch

_aten = torch.ops.aten

START, TRIG, POSITIONS, POINTWISE, LAYOUT, PRODUCT = "start", "trig", "positions", "pointwise", "layout", "product"
"""Parts of operators: START: autocast on CUDA runs it in float32. TRIG: its result depends on the absolute error of
angles. POSITIONS: it makes numbers of positions. POINTWISE: it runs in the precision of its inputs. LAYOUT: its output
consists of elements of its inputs. PRODUCT: a matrix product, followed only where it is an outer product."""

_NAMES = {
    START: (
        *("_softmax", "_log_softmax", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "reciprocal"),
        *("rsqrt", "sum", "cumsum", "prod", "cumprod", "logsumexp", "logcumsumexp", "linalg_vector_norm", "norm"),
        *("var", "std", "softplus", "acos", "asin", "cosh", "sinh", "tan", "erfinv", "_cdist_forward"),
    ),
    TRIG: ("cos", "sin", "polar"),
    POSITIONS: ("arange", "linspace"),
    POINTWISE: (
        *("add", "sub", "rsub", "mul", "div", "neg", "abs", "sqrt", "mean", "amax", "amin", "maximum", "minimum"),
        *("clamp", "clamp_min", "clamp_max", "where", "masked_fill", "tanh", "sigmoid", "relu", "lerp", "sign"),
        *("addcmul", "addcdiv", "_to_copy"),
    ),
    LAYOUT: (
        *("view", "_unsafe_view", "_reshape_alias", "unsqueeze", "squeeze", "expand", "permute", "transpose", "t"),
        *("select", "slice", "clone", "alias", "detach", "cat", "stack", "repeat", "index_select", "gather", "index"),
        *("flip", "roll", "triu", "tril"),
    ),
    PRODUCT: ("mm", "bmm"),
}
"""Part -> names of operators. layer_norm and its like are left out: their kernels compute in float32 and round once."""

PARTS = {getattr(_aten, name): part for part, names in _NAMES.items() for name in names if hasattr(_aten, name)}
"""Operator -> its part."""
