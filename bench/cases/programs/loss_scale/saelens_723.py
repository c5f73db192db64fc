"""The trainer has a GradScaler that has never had anything to do.

All autocast contexts of the library are bfloat16, which has the range of float32: nothing underflows. The scaler still
checks every step and can skip steps when its check trips, an invisible way for training to stall. The change removes
it.
"""

import sys
from contextlib import nullcontext

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


class SAE(nn.Module):
    def __init__(self, width=32, latents=128):
        super().__init__()
        self.encode, self.decode = nn.Linear(width, latents), nn.Linear(latents, width)

    def forward(self, x):
        latents = self.encode(x).relu()
        return self.decode(latents), latents


class Trainer:
    def __init__(self, sae, autocast=True):
        self.sae = sae
        self.optimizer = torch.optim.Adam(sae.parameters(), lr=1e-3)
        self.grad_scaler = torch.amp.GradScaler("cpu", enabled=autocast and not REPAIRED)
        self.autocast = torch.autocast("cpu", dtype=torch.bfloat16) if autocast else nullcontext()

    def train_step(self, activations):
        self.sae.train()
        with self.autocast:
            output, latents = self.sae(activations)
            loss = (output.float() - activations).square().sum(-1).mean() + 1e-3 * latents.float().abs().sum(-1).mean()
        self.grad_scaler.scale(loss).backward()
        self.grad_scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.sae.parameters(), 1.0)
        self.grad_scaler.step(self.optimizer)
        self.grad_scaler.update()
        self.optimizer.zero_grad()
        return loss.item()


trainer = Trainer(SAE())
for step in range(100):
    loss = trainer.train_step(torch.randn(64, 32))
    if step % 20 == 0:
        print(step, loss)
