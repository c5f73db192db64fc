"""A Function of the program's own, which hides the graph behind it from a reader of the graph."""

from __future__ import annotations

from typing import Any

import torch


class Passing(torch.autograd.Function):
    """Returns its input, and its gradient times a factor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0] * ctx.factor, None
