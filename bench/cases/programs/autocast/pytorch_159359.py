"""Activation checkpointing ends with CheckpointError: recomputed values have other metadata.

FSDP2 casts the inputs of a module to its parameters' dtype before the forward pass. During the
recomputation in backward() its hook returned early, without that cast: the tensors were saved as
bfloat16 and came back as float32. The fix casts in the recomputation too.
"""

import sys
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

REPAIRED = "--repaired" in sys.argv


class Norm(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * torch.rsqrt(inputs.square().mean(-1, keepdim=True) + 1e-6)


class Sharded(nn.Module):
    """A module whose inputs are cast before its forward pass, as FSDP2 does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = Norm(), nn.Linear(64, 128), nn.Linear(128, 64)
        self.in_backward = False
        self.register_forward_pre_hook(self.cast_inputs)

    def cast_inputs(self, module: nn.Module, inputs: Any) -> Any:
        if self.in_backward and not REPAIRED:
            return None
        return tuple(value.to(torch.bfloat16) for value in inputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.down(nn.functional.silu(self.up(self.norm(inputs))))
        return hidden


torch.manual_seed(0)
torch.set_num_threads(1)
block, head = Sharded(), nn.Linear(64, 4)
optimizer = torch.optim.AdamW([*block.parameters(), *head.parameters()], lr=1e-3)
inputs, labels = torch.randn(256, 64), torch.randint(0, 4, (256,))
for _ in range(60):
    chosen = torch.randint(0, 256, (32,))
    optimizer.zero_grad()
    block.in_backward = False
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = checkpoint(block, inputs[chosen].requires_grad_(), use_reentrant=False)
        logits = head(hidden)
    block.in_backward = True
    loss = nn.functional.cross_entropy(logits.float(), labels[chosen])
    loss.backward()
    optimizer.step()
