"""Gradients overflow under torch.compile in a part that is kept in float32.

The model leaves autocast for its last layer, and in eager mode its gradient of 65536 is right.
Compiled with the autocast context around the call, the backward pass of that layer ran in float16
as well, and the gradient became Inf. torch traces it under the autocast of the forward pass;
torch._functorch.config.backward_pass_autocast = "off"  # noqa: S105 makes it behave as eager mode does.
"""

import sys

import torch
import torch._functorch.config
from torch import nn

REPAIRED = "--repaired" in sys.argv
if REPAIRED:
    torch._functorch.config.backward_pass_autocast = "off"  # noqa: S105


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", torch.ones(4, 4))
        self.second = nn.Linear(4, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = inputs @ self.first
        with torch.autocast("cpu", enabled=False):
            result: torch.Tensor = self.second(hidden.float())
        return result


torch.manual_seed(0)
torch.set_num_threads(1)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
compiled = torch.compile(model, backend="aot_eager")
for _ in range(30):
    inputs = torch.ones(1, 4) + 0.1 * torch.rand(1, 4)
    with torch.autocast("cpu", dtype=torch.float16):
        prediction = compiled(inputs)
    loss = (prediction * 16384).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
