"""lr_scheduler.step() before optimizer.step(), says a warning, although the order is right.

People call scaler.step(optimizer), lr_scheduler.step(), scaler.update(), as the documentation does. The scaler skips
steps until it has found a scale that fits, and the schedule moves on without them: here the warm-up is over before the
first update. They found: compare the scale before and after update(), and step the scheduler only if it did not fall.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
lr_scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-6, total_steps=201)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
for step in range(200):
    x = torch.randn(64, 64)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x).float(), 4 * x, reduction="sum")
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    if REPAIRED:
        before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() >= before:
            lr_scheduler.step()
    else:
        lr_scheduler.step()
        scaler.update()
    if step % 20 == 0:
        print(step, loss.item(), scaler.get_scale(), lr_scheduler.get_last_lr())
