"""Unscaling the wrapped optimizer: the gradient is unscaled twice.

GradScaler notes by id() which optimizer is unscaled. The library calls unscale_() with the wrapper of an optimizer and
step() with the optimizer itself, which therefore counts as not unscaled and is divided by the scale again. Found:
unscale the inner optimizer.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


class AcceleratedOptimizer(torch.optim.Optimizer):
    def __init__(self, optimizer, scaler):
        self.optimizer, self.scaler = optimizer, scaler

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure=None):
        self.scaler.step(self.optimizer)
        self.scaler.update()


def clip_grad_norm_(optimizer, parameters, max_norm):
    optimizer.scaler.unscale_(optimizer.optimizer if REPAIRED else optimizer)
    nn.utils.clip_grad_norm_(parameters, max_norm)


model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))
scaler = torch.amp.GradScaler("cpu")
optimizer = AcceleratedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), scaler)
for step in range(120):
    x = torch.randn(32, 32)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x).float(), x.tanh())
    scaler.scale(loss).backward()
    clip_grad_norm_(optimizer, model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0:
        print(step, loss.item())
