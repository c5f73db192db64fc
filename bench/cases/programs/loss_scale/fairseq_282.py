"""Minimum loss scale reached.

A trainer with its own loss scaler raises once the scale falls below 0.0001. People met it with a learning rate of
0.001: sometimes the loss explodes, and then no scale is low enough. The answers: a lower learning rate, or clipping.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


class DynamicLossScaler:
    def __init__(self, scale=2.0**7, window=2000, minimum=1e-4):
        self.scale, self.window, self.minimum, self.good = scale, window, minimum, 0

    def update(self, overflow):
        if overflow:
            self.scale /= 2
            self.good = 0
            if self.scale <= self.minimum:
                raise FloatingPointError(
                    f"Minimum loss scale reached ({self.minimum}). Your loss is probably exploding."
                )
            return
        self.good += 1
        if self.good % self.window == 0:
            self.scale *= 2


model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 if REPAIRED else 30.0, momentum=0.9)
scaler = DynamicLossScaler()
for step in range(150):
    x = torch.randn(32, 64)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x).float(), x.roll(1, 1))
    (loss * scaler.scale).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
    overflow = not torch.isfinite(norm)
    if not overflow:
        for parameter in model.parameters():
            parameter.grad.div_(scaler.scale)
        optimizer.step()
    print(step, loss.item(), scaler.scale, flush=True) if step % 10 == 0 else None
    scaler.update(overflow)
