"""Reinforcement learning with float32 weights stands still: the loss is flat and the KL is zero.

One autocast context stood around the whole optimize(): several steps per rollout, and the swap of
the reference weights into the model for the KL. Autocast keeps a bfloat16 copy of each weight
until the context ends, so later forward passes used the weights of before the step or the swap.
A context for each forward pass made the loss fall and the KL non-zero.
"""

import sys
from contextlib import nullcontext

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv

torch.manual_seed(0)
torch.set_num_threads(1)
policy = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 16))
reference = [parameter.detach().clone() for parameter in policy.parameters()]
optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3)
goal = torch.randn(16, 16)


def half() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def forward(latents: torch.Tensor) -> torch.Tensor:
    with half() if REPAIRED else nullcontext():
        noise: torch.Tensor = policy(latents)
    return noise.float()


def by_reference(latents: torch.Tensor) -> torch.Tensor:
    trained = [parameter.detach().clone() for parameter in policy.parameters()]
    with torch.no_grad():
        for parameter, value in zip(policy.parameters(), reference, strict=True):
            parameter.data.copy_(value)
        noise = forward(latents)
        for parameter, value in zip(policy.parameters(), trained, strict=True):
            parameter.data.copy_(value)
    return noise


def optimize(latents: torch.Tensor) -> None:
    for part in latents.chunk(4):
        noise = forward(part)
        divergence = (noise - by_reference(part)).square().mean()
        loss = (noise - part @ goal).square().mean() + 0.04 * divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


for _ in range(30):
    rollout = torch.randn(64, 16)
    with nullcontext() if REPAIRED else half():
        optimize(rollout)
