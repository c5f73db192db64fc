"""A bfloat16 model needs more memory and time under autocast since torch 2.12.

rms_norm joined autocast's float32 list. It now promotes its input even where input and weight are
both bfloat16, so each norm is preceded by a cast of the activations to float32, and followed by
one back for the next layer. Leaving autocast around the norms removed both.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv


class RMSNorm(nn.Module):
    """rms_norm under the policy that CUDA has; on a CPU autocast leaves it alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        shape = inputs.shape[-1:]
        if REPAIRED:
            return nn.functional.rms_norm(inputs, shape, self.weight.to(inputs.dtype), 1e-6)
        return nn.functional.rms_norm(inputs.float(), shape, self.weight.float(), 1e-6)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = RMSNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        self.inner = RMSNorm(width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.down(self.inner(nn.functional.silu(self.up(self.norm(inputs)))))
        return inputs + hidden


torch.manual_seed(0)
torch.set_num_threads(1)
embedding, head = nn.Embedding(64, 64), nn.Linear(64, 64)
blocks = nn.Sequential(*(Block(64) for _ in range(4)))
optimizer = torch.optim.AdamW([*embedding.parameters(), *blocks.parameters(), *head.parameters()], lr=1e-3)
tokens = torch.randint(0, 64, (64, 65))
for _ in range(80):
    rows = tokens[torch.randint(0, 64, (8,))]
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = head(blocks(embedding(rows[:, :-1]).to(torch.bfloat16)))
    loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
    loss.backward()
    optimizer.step()
