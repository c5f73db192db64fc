"""The rotary phase of a bfloat16 training is wrong by up to half a turn at long contexts.

The inverse frequencies were cast to the activations' dtype before they were multiplied with the
token positions. Their error of 2^-9 grows with the position: 0.6 radians at 512 tokens, 3.1 at
4096. With float32 inverse frequencies the error is 0.003; only sine and cosine are cast.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
WIDTH = 64


class RotaryTransform(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inv_freq = 1.0 / 10000 ** (torch.arange(0, WIDTH, 2).float() / WIDTH)

    def tables(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(inputs.shape[1], dtype=torch.float32)
        frequencies = self.inv_freq if REPAIRED else self.inv_freq.to(inputs.dtype)
        angles = torch.einsum("i,j->ij", positions.to(frequencies.dtype), frequencies)
        angles = torch.cat((angles, angles), -1)
        return angles.cos().to(inputs.dtype), angles.sin().to(inputs.dtype)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        cos, sin = self.tables(inputs)
        left, right = inputs.chunk(2, -1)
        return inputs * cos + torch.cat((-right, left), -1) * sin


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.rotary, self.head = nn.Embedding(32, WIDTH), RotaryTransform(), nn.Linear(WIDTH, 32)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        query, key, value = self.qkv(hidden).chunk(3, -1)
        query, key = self.rotary(query), self.rotary(key)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        logits: torch.Tensor = self.head(hidden + mixed)
        return logits


torch.manual_seed(0)
torch.set_num_threads(1)
model = Model().to(torch.bfloat16)
masters = [parameter.detach().float() for parameter in model.parameters()]
optimizer = torch.optim.AdamW(masters, lr=1e-3)
tokens = torch.randint(0, 32, (16, 401))
for _ in range(60):
    rows = tokens[torch.randint(0, 16, (2,))]
    loss = nn.functional.cross_entropy(model(rows[:, :-1]).float().flatten(0, 1), rows[:, 1:].flatten())
    model.zero_grad()
    loss.backward()
    for master, parameter in zip(masters, model.parameters(), strict=True):
        master.grad = None if parameter.grad is None else parameter.grad.float()
    optimizer.step()
    with torch.no_grad():
        for master, parameter in zip(masters, model.parameters(), strict=True):
            parameter.copy_(master)
