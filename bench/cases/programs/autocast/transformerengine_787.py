"""A checkpointed block fails in backward(): mat1 and mat2 must have the same dtype.

The block mixes layers that compute in their own low precision with plain nn.Linear under bfloat16
autocast. The checkpoint of the library runs the block again during backward(), where autocast is
off: the first layer returns bfloat16 and nn.Linear keeps its float32 weight. The fix restores the
autocast context of the forward pass for the recomputation.
"""

import sys
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv


class OwnPrecision(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            narrow = torch.bfloat16
            return nn.functional.linear(inputs.to(narrow), self.weight.to(narrow), self.bias.to(narrow))


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, block: nn.Module, inputs: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.block, ctx.autocast = block, torch.is_autocast_enabled("cpu")
        ctx.save_for_backward(inputs)
        with torch.no_grad():
            outputs: torch.Tensor = block(inputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor | None]:  # type: ignore[override]
        inputs = ctx.saved_tensors[0].detach().requires_grad_()
        again = torch.autocast("cpu", torch.bfloat16, enabled=ctx.autocast) if REPAIRED else nullcontext()
        with torch.enable_grad(), again:
            outputs = ctx.block(inputs)
        torch.autograd.backward(outputs, grad)
        return None, inputs.grad


torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(32, 32), OwnPrecision(32, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs, goals = torch.randn(256, 32), torch.randn(256, 4)
for _ in range(60):
    chosen = torch.randint(0, 256, (32,))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = Checkpoint.apply(model, inputs[chosen].requires_grad_())
    loss = nn.functional.mse_loss(outputs.float(), goals[chosen])
    loss.backward()
    optimizer.step()
