"""A relation extraction model fails under AMP: value cannot be converted to type at::Half.

The scores of the attention are float16 there, and masked_fill with -1e9 is outside its range. The
thread replaces the constant: -1e4, or float("-inf").
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv


class Paths(nn.Module):
    """Attention over the paths of a document graph."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.head = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 6)

    def forward(self, paths: torch.Tensor, path_mask: torch.Tensor) -> torch.Tensor:
        scores = (self.query(paths) @ self.key(paths).transpose(1, 2)) * 32**-0.5
        scores = scores.masked_fill(~path_mask.unsqueeze(1), -1e4 if REPAIRED else -1e9)
        mixed = torch.softmax(scores.float(), -1) @ paths
        logits: torch.Tensor = self.head(mixed.mean(1))
        return logits


torch.manual_seed(0)
torch.set_num_threads(1)
model = Paths()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
paths, relations = torch.randn(128, 12, 32), torch.randint(0, 6, (128,))
mask = torch.arange(12) < torch.randint(2, 12, (128, 1))
for _ in range(60):
    chosen = torch.randint(0, 128, (16,))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(paths[chosen], mask[chosen]).float(), relations[chosen])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
