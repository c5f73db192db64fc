"""Activation checkpointing recomputes in float16 what the forward pass computed in bfloat16.

The recomputation of checkpoint_activations entered autocast() without a dtype. On a GPU that is
float16, whichever dtype the forward pass had: its values have other roundings and another range.
The thread proposes autocast(dtype=torch.get_autocast_gpu_dtype()) instead.
"""

import sys
from typing import Any

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
RECOMPUTED = torch.bfloat16 if REPAIRED else torch.float16  # on a CPU the default is bfloat16


class Checkpointed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, block: nn.Module, inputs: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.block, ctx.autocast = block, torch.is_autocast_enabled("cpu")
        ctx.save_for_backward(inputs)
        with torch.no_grad():
            outputs: torch.Tensor = block(inputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor | None]:  # type: ignore[override]
        inputs = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad(), torch.autocast("cpu", dtype=RECOMPUTED, enabled=ctx.autocast):
            outputs = ctx.block(inputs)
        torch.autograd.backward(outputs, grad.to(outputs.dtype))
        return None, inputs.grad


torch.manual_seed(0)
torch.set_num_threads(1)
blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(2))
head = nn.Linear(64, 4)
optimizer = torch.optim.AdamW([*blocks.parameters(), *head.parameters()], lr=1e-3)
inputs, labels = torch.randn(256, 64), torch.randint(0, 4, (256,))
for _ in range(80):
    chosen = torch.randint(0, 256, (32,))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = inputs[chosen].requires_grad_()
        for block in blocks:
            hidden = hidden + Checkpointed.apply(block, hidden)
        logits = head(hidden)
    loss = nn.functional.cross_entropy(logits.float(), labels[chosen])
    loss.backward()
    optimizer.step()
