"""Variable-length attention returns NaN gradients for the padding behind the last sequence.

The kernel allocates the gradients with torch.empty in the length of its inputs and writes only the
rows below cu_seqlens[-1]. What lies behind is whatever the memory held, NaN included, and the
projection before it spreads it to its weight. The fix writes zeros there.
"""

import sys
from typing import Any

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv


class VarlenAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, used: int) -> torch.Tensor:
        ctx.used = used
        ctx.save_for_backward(query, key, value)
        weights = torch.softmax(query[:used] @ key[:used].t() * query.shape[1] ** -0.5, -1)
        out = torch.zeros_like(value)
        out[:used] = weights @ value[:used]
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        used, scale = ctx.used, ctx.saved_tensors[0].shape[1] ** -0.5
        query, key, value = (tensor[:used] for tensor in ctx.saved_tensors)
        weights, grad = torch.softmax(query @ key.t() * scale, -1), grad[:used]
        product = grad @ value.t()
        scored = weights * (product - (weights * product).sum(-1, keepdim=True)) * scale
        grads = scored @ key, scored.t() @ query, weights.t() @ grad
        return allocated(grads[0], ctx), allocated(grads[1], ctx), allocated(grads[2], ctx), None


def allocated(written: torch.Tensor, ctx: Any) -> torch.Tensor:
    """The written rows at the front of memory that a past tensor left behind."""
    whole = torch.full_like(ctx.saved_tensors[0], 0.0 if REPAIRED else float("nan"))
    whole[: ctx.used] = written
    return whole


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.qkv, self.head = nn.Embedding(64, 32), nn.Linear(32, 96), nn.Linear(32, 64)

    def forward(self, tokens: torch.Tensor, used: int) -> torch.Tensor:
        hidden = self.embedding(tokens)
        query, key, value = self.qkv(hidden).chunk(3, -1)
        return self.head(hidden + VarlenAttention.apply(query, key, value, used))


torch.manual_seed(0)
torch.set_num_threads(1)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tokens = torch.randint(0, 64, (64, 65))
for step in range(60):
    row = tokens[step % 64]
    used = 64 if step < 30 else 57
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(row[:-1], used)
    loss = nn.functional.cross_entropy(logits[:used].float(), row[1 : used + 1])
    loss.backward()
    optimizer.step()
