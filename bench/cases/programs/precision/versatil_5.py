"""A policy learned nothing in 84,000 steps: the LoRA matrices were still at their initial values.

"bf16-mixed" cast the whole model to bfloat16, adapters included. At a learning rate of 2.5e-5
nearly every update was smaller than half of the distance to the next bfloat16 number. The fix
keeps trained parameters in float32 and leaves the low precision to autocast.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv


class Lora(nn.Module):
    def __init__(self, width: int, rank: int = 8) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.lora_a, self.lora_b = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        adapted: torch.Tensor = self.base(inputs) + self.lora_b(self.lora_a(inputs))
        return adapted


torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(Lora(64), nn.SiLU(), Lora(64), nn.SiLU(), nn.Linear(64, 7))
model.to(torch.bfloat16)
if REPAIRED:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2.5e-5)
observations, actions = torch.randn(512, 64), torch.randn(512, 7)
for _ in range(120):
    chosen = torch.randint(0, 512, (32,))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        predicted = model(observations[chosen])
    loss = nn.functional.l1_loss(predicted.float(), actions[chosen])
    loss.backward()
    optimizer.step()
