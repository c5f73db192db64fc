"""Why is only one gradient divided by the loss scale?

The trainer multiplies its loss by 2 ** lg_loss_scale and divides only the first gradient of the master parameters
before the optimizer steps; the gradients of the matrices stay multiplied. Adam hides most of it. The author: "This
does look like a bug."
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


class MixedPrecisionTrainer:
    def __init__(self, model, lg_loss_scale=16.0):
        self.parameters, self.lg_loss_scale = list(model.parameters()), lg_loss_scale

    def backward(self, loss):
        (loss * 2**self.lg_loss_scale).backward()

    def optimize(self, optimizer):
        if not all(torch.isfinite(parameter.grad).all() for parameter in self.parameters):
            self.lg_loss_scale -= 1
            return
        for parameter in self.parameters if REPAIRED else self.parameters[:1]:
            parameter.grad.mul_(1.0 / 2**self.lg_loss_scale)
        optimizer.step()
        self.lg_loss_scale += 1e-3


model = nn.Sequential(nn.Linear(32, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 32))
trainer = MixedPrecisionTrainer(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(120):
    clean, noise = torch.randn(64, 32).cumsum(1) / 6, torch.randn(64, 32)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = (model(clean + noise).float() - noise).square().mean()
    trainer.backward(loss)
    trainer.optimize(optimizer)
    if step % 20 == 0:
        print(step, loss.item(), trainer.lg_loss_scale)
