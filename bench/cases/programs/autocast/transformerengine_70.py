"""The weight of a layer stays at its initial value under AMP, without any error.

The layer is an autograd.Function. torch runs it without gradients, so the copy of the weight that
its forward pass makes for the low precision has requires_grad=False. The backward pass asks that
copy whether a weight gradient is needed, and returns None. The fix casts with gradients enabled.
"""

import sys
from typing import Any

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv


def cast(tensor: torch.Tensor) -> torch.Tensor:
    if REPAIRED:
        with torch.enable_grad():
            return tensor.to(torch.bfloat16)
    return tensor.to(torch.bfloat16)


class LinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        narrow = cast(weight)
        ctx.weight_needed = narrow.requires_grad
        ctx.save_for_backward(cast(inputs), narrow.detach())
        return cast(inputs).detach() @ narrow.detach().t()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:  # type: ignore[override]
        inputs, weight = ctx.saved_tensors
        wgrad = grad.t() @ inputs if ctx.weight_needed else None
        return grad @ weight, wgrad


class Linear(nn.Module):
    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, features) * features**-0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = LinearFunction.apply(inputs, self.weight)
        return result + self.bias


torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(Linear(32, 64), nn.GELU(), Linear(64, 64), nn.GELU(), Linear(64, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
inputs, goals = torch.randn(256, 32), torch.randn(256, 8)
for _ in range(80):
    chosen = torch.randint(0, 256, (32,))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        prediction = model(inputs[chosen].requires_grad_())
    loss = (prediction.float() - goals[chosen]).square().mean()
    loss.backward()
    optimizer.step()
