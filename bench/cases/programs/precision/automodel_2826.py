"""Loss and all gradients are NaN for batches of mixed lengths with the eager attention only.

The blocks of padding had their whole row masked with -inf, and the softmax of such a row is NaN.
Their outputs are dropped later, but a valid query weighs their values with 0, and 0 * NaN is NaN.
The fix keeps a padding block's attention to itself, so that no row is empty.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(hidden).chunk(3, -1)
        visible = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool).tril() & kept.unsqueeze(-1)
        if REPAIRED:
            visible = visible | torch.eye(hidden.shape[1], dtype=torch.bool)
        scores = (query @ key.transpose(1, 2)) * hidden.shape[-1] ** -0.5
        weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), -1)
        mixed: torch.Tensor = hidden + self.out(weights @ value)
        return mixed


torch.manual_seed(0)
torch.set_num_threads(1)
embedding, head = nn.Embedding(64, 32), nn.Linear(32, 64)
layers = nn.ModuleList(Attention(32) for _ in range(2))
optimizer = torch.optim.AdamW([*embedding.parameters(), *layers.parameters(), *head.parameters()], lr=1e-3)
tokens = torch.randint(0, 64, (64, 25))
for step in range(60):
    rows = tokens[torch.randint(0, 64, (8,))]
    lengths = torch.full((8,), 24) if step < 35 else torch.randint(12, 24, (8,))
    kept = torch.arange(24) < lengths.unsqueeze(1)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = embedding(rows[:, :-1])
        for layer in layers:
            hidden = layer(hidden, kept)
        logits = head(hidden)
    losses = nn.functional.cross_entropy(logits.float().transpose(1, 2), rows[:, 1:], reduction="none")
    loss = losses[kept].mean()
    loss.backward()
    optimizer.step()
