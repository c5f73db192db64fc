"""backward() of a float8 linear layer raises: expected BFloat16 but found Float.

With scaling disabled the layer's Function saves its tensors as they are. Under autocast the input
arrives in bfloat16 and the weight stays float32, and backward() multiplies the bfloat16 gradient
with the float32 weight, which torch.mm does not promote. The fix casts the weight to the
gradient's dtype.
"""

import sys
from typing import Any

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv


class Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight_t: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(inputs, weight_t)
        return torch.mm(inputs, weight_t)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        inputs, weight_t = ctx.saved_tensors
        if REPAIRED:
            weight_t = weight_t.to(grad.dtype)
        return torch.mm(grad, weight_t.t()), torch.mm(inputs.t(), grad)


class Float8Linear(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = Matmul.apply(inputs, self.weight.t())
        return result + self.bias


torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), Float8Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs, labels = torch.randn(256, 32), torch.randint(0, 4, (256,))
for _ in range(60):
    chosen = torch.randint(0, 256, (32,))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen])
    loss.backward()
    optimizer.step()
