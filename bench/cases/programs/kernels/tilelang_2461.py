"""dK of a variable-length attention backward pass is NaN, depending on what memory held before.

The forward pass allocates the log-sum-exp of all rows and writes only those of real tokens. The
backward pass reads the others too: their probability is masked with 0, and 0 * NaN is NaN, which
the matrix product adds to every key. The fix writes 0.0 to the padding.
"""

import sys
from typing import Any

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, used: int) -> torch.Tensor:
        scores = query @ key.t() * query.shape[1] ** -0.5
        lse = torch.full((query.shape[0], 1), 0.0 if REPAIRED else float("nan"))  # memory that was in use before
        lse[:used] = scores[:used].logsumexp(-1, keepdim=True)
        ctx.save_for_backward(query, key, value, lse)
        ctx.used = used
        out = torch.zeros_like(value)
        out[:used] = (scores[:used] - lse[:used]).exp() @ value
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        query, key, value, lse = ctx.saved_tensors
        scale = query.shape[1] ** -0.5
        mask = (torch.arange(query.shape[0]) < ctx.used).float().unsqueeze(-1)
        weights = (query @ key.t() * scale - lse).exp() * mask
        product = grad @ value.t()
        scored = weights * (product - (weights * product).sum(-1, keepdim=True)) * scale
        return scored @ key, scored.t() @ query, weights.t() @ grad, None


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.query, self.key, self.value = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, tokens: torch.Tensor, used: int) -> torch.Tensor:
        hidden = self.embedding(tokens)
        mixed = Attention.apply(self.query(hidden), self.key(hidden), self.value(hidden), used)
        return self.head(hidden + mixed)


torch.manual_seed(0)
torch.set_num_threads(1)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
tokens = torch.randint(0, 64, (64, 65))
for step in range(60):
    row = tokens[step % 64]
    used = 64 if step < 30 else 60
    optimizer.zero_grad()
    logits = model(row[:-1], used)
    loss = nn.functional.cross_entropy(logits[:used], row[1 : used + 1])
    loss.backward()
    optimizer.step()
