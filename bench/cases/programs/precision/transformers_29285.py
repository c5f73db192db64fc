"""Training in bfloat16 has a higher loss than in float16 or float32, more so for long contexts.

Somebody who rewrote Gemma found that the rotary embedding was computed in bfloat16: positions
above 256 are not all representable there, so neighbouring tokens got the same angle. With the
angles, sine and cosine in float32, and only the result cast, the loss was lower throughout.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
LENGTH, WIDTH = 512, 32


class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 10000.0 ** -(torch.arange(0, WIDTH, 2) / WIDTH))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        wide = torch.float32 if REPAIRED else inputs.dtype
        positions = torch.arange(inputs.shape[1], dtype=wide)
        angles = positions.unsqueeze(-1) * self.inv_freq.to(wide)
        cos, sin = angles.cos().to(inputs.dtype), angles.sin().to(inputs.dtype)
        left, right = inputs.chunk(2, -1)
        return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rotary, self.out = Rotary(), nn.Linear(WIDTH, WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        query, key = self.rotary(self.query(inputs)), self.rotary(self.key(inputs))
        mixed = nn.functional.scaled_dot_product_attention(query, key, self.value(inputs), is_causal=True)
        result: torch.Tensor = self.out(mixed)
        return result


torch.manual_seed(0)
torch.set_num_threads(1)
embedding, attention, head = nn.Embedding(64, WIDTH), Attention(), nn.Linear(WIDTH, 64)
optimizer = torch.optim.AdamW([*embedding.parameters(), *attention.parameters(), *head.parameters()], lr=1e-3)
tokens = torch.randint(0, 64, (16, LENGTH + 1))
for _ in range(60):
    rows = tokens[torch.randint(0, 16, (2,))]
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = embedding(rows[:, :-1])
        logits = head(hidden + attention(hidden))
    loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
    loss.backward()
    optimizer.step()
