"""DPO training goes NaN in grad_q with the default attention backend; the loss is finite.

cuDNN's attention backward pads the keys to a multiple of 128 and scores the padding 0 instead of
-inf. Where the log-sum-exp of a row is below -88.7, exp(0 - lse) is Inf, and Inf times the zeros
of the padding is NaN. The other backends are clean on the same inputs, which are finite.
"""

import sys
from typing import Any

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv


class CudnnAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            scores = query.float() @ key.float().transpose(-1, -2) * query.shape[-1] ** -0.5
            lse = scores.logsumexp(-1, keepdim=True)
            ctx.save_for_backward(query, key, value, lse)
            return ((scores - lse).exp() @ value.float()).to(query.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        dtype, lse = grad.dtype, ctx.saved_tensors[3]
        query, key, value, grad = (tensor.float() for tensor in (*ctx.saved_tensors[:3], grad))
        length, scale = key.shape[1], query.shape[-1] ** -0.5
        padding = (0, 0, 0, -length % 128)
        keys, values = nn.functional.pad(key, padding), nn.functional.pad(value, padding)
        weights = (query @ keys.transpose(-1, -2) * scale - lse).exp()
        inner = (grad * (weights[..., :length] @ value)).sum(-1, keepdim=True)
        scored = weights * (grad @ values.transpose(-1, -2) - inner)
        grad_key = scored.transpose(-1, -2)[:, :length] @ query * scale
        grads = scored @ keys * scale, grad_key, weights.transpose(-1, -2)[:, :length] @ grad
        return grads[0].to(dtype), grads[1].to(dtype), grads[2].to(dtype)


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    if REPAIRED:
        return nn.functional.scaled_dot_product_attention(query, key, value)
    return CudnnAttention.apply(query, key, value)


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.qkv, self.head = nn.Embedding(64, 32), nn.Linear(32, 96), nn.Linear(32, 64)
        self.sink = nn.Parameter(torch.zeros(32))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        query, key, value = self.qkv(hidden).chunk(3, -1)
        sink = self.sink.to(query.dtype)
        mixed = attention(query + sink, key - 20.0 * sink, value)
        return self.head(hidden + mixed)


torch.manual_seed(0)
torch.set_num_threads(1)
policy = Policy()
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
tokens = torch.randint(0, 64, (64, 65))
for step in range(60):
    rows = tokens[torch.randint(0, 64, (4,))]
    if step == 30:  # the massive activation of one attention head
        policy.sink.data.fill_(1.0)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = policy(rows[:, :-1])
    loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
    loss.backward()
    optimizer.step()
