"""Fused AdamW: an overflow leaves step_was_skipped False, and the learning rate schedule advances.

AcceleratedOptimizer decides whether a step was skipped by whether optimizer.step() was called. A fused AdamW is called
always and skips in its kernel, so the scheduler moves on without an update. Found: read the skip from the scale, which
is lower after update().
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


class Optimizer:
    """What a library wraps around an optimizer."""

    def __init__(self, optimizer, scaler):
        self.optimizer, self.scaler, self.step_was_skipped = optimizer, scaler, False
        self._called = False
        step = optimizer.step

        def counted(*args, **kwargs):
            self._called = True
            return step(*args, **kwargs)

        optimizer.step = counted

    def step(self):
        self._called = False
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.step_was_skipped = self.scaler.get_scale() < before if REPAIRED else not self._called


model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
scheduler = torch.optim.lr_scheduler.LinearLR(adamw, 1.0, 0.0, total_iters=200)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**32)
optimizer = Optimizer(adamw, scaler)
for step in range(200):
    x, target = torch.randn(32, 32), torch.randn(32, 8)
    adamw.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = (model(x).float() - target).square().sum()
    scaler.scale(loss).backward()
    optimizer.step()
    if not optimizer.step_was_skipped:
        scheduler.step()
    if step % 20 == 0:
        print(step, loss.item(), scaler.get_scale(), scheduler.get_last_lr())
