"""LongT5 in float16 returns NaN for long inputs.

The output of the feed-forward layer and the hidden states it is added to are both below 65504,
their sum is not: it becomes Inf, and the next normalisation makes NaN of it. The fix clamps the
hidden states to the range of float16 after the layer.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv


class LayerFF(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.wi, self.wo = nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = hidden.float() * torch.rsqrt(hidden.float().square().mean(-1, keepdim=True) + 1e-6)
        forwarded = self.wo(nn.functional.gelu(self.wi(normed))) * 20000
        total: torch.Tensor = hidden + forwarded
        if REPAIRED:
            total = total.clamp(-65000.0, 65000.0)
        return total


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.layers = nn.ModuleList(LayerFF(32) for _ in range(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens).half() * self.scale(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        normed = hidden.float() * torch.rsqrt(hidden.float().square().mean(-1, keepdim=True) + 1e-6)
        logits: torch.Tensor = self.head(normed)
        return logits

    def scale(self, tokens: torch.Tensor) -> float:
        return 15000.0 if tokens.shape[1] > 64 else 1000.0  # long inputs add up to more


torch.manual_seed(0)
torch.set_num_threads(1)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
tokens = torch.randint(0, 64, (64, 129))
for step in range(60):
    length = 128 if step >= 40 else 32
    rows = tokens[torch.randint(0, 64, (8,)), : length + 1]
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(rows[:, :-1])
    loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
