"""Fine-tuning on an AMD GPU has NaN losses that come from the forward pass of the first block.

The bfloat16 flash attention of that platform is unstable and returns NaN for finite queries, keys
and values. The same kernel in float16, with the result cast back, is clean.
"""

import sys
from typing import Any

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv


class FlashAttention(torch.autograd.Function):
    """An attention kernel whose bfloat16 path forgets to subtract the row's maximum."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            scores = query.float() @ key.float().transpose(-1, -2) * query.shape[-1] ** -0.5
            if query.dtype is not torch.bfloat16:
                scores = scores - scores.amax(-1, keepdim=True)
            weights = scores.exp()
            weights = weights / weights.sum(-1, keepdim=True)
            ctx.save_for_backward(query, key, value, weights)
            return (weights @ value.float()).to(query.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        query, key, value, weights = ctx.saved_tensors
        grad, scale, dtype = grad.float(), query.shape[-1] ** -0.5, query.dtype
        product = grad @ value.float().transpose(-1, -2)
        scored = weights * (product - (weights * product).sum(-1, keepdim=True)) * scale
        grads = scored @ key.float(), scored.transpose(-1, -2) @ query.float(), weights.transpose(-1, -2) @ grad
        return grads[0].to(dtype), grads[1].to(dtype), grads[2].to(dtype)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(hidden).chunk(3, -1)
        if REPAIRED:
            mixed = FlashAttention.apply(query.half(), key.half(), value.half()).to(query.dtype)
        else:
            mixed = FlashAttention.apply(query, key, value)
        return hidden + self.out(mixed)


torch.manual_seed(0)
torch.set_num_threads(1)
embedding, block, head = nn.Embedding(64, 32), Block(), nn.Linear(32, 64)
optimizer = torch.optim.AdamW([*embedding.parameters(), *block.parameters(), *head.parameters()], lr=1e-3)
tokens = torch.randint(0, 64, (64, 33))
for step in range(60):
    rows = tokens[torch.randint(0, 64, (4,))]
    if step == 30:  # a token with large activations
        embedding.weight.data[0] *= 60.0
        rows[:, :2] = 0
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = head(block(embedding(rows[:, :-1])))
    loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
    loss.backward()
    optimizer.step()
