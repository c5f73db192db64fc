"""Gradient accumulation does not work with clip_grad_norm_.

The loop clips after every micro-batch, and clipping unscales. The second micro-batch of a step adds scaled gradients to
unscaled ones, and the second unscale_() of a step raises RuntimeError. Found: unscale_() may be called once per step(),
after all gradients have been accumulated, so clip only when gradients are synchronized.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)

ACCUMULATE = 4
model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
for number in range(240):
    x, target = torch.randn(16, 32), torch.randint(8, (16,))
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x).float(), target) / ACCUMULATE
    scaler.scale(loss).backward()
    sync_gradients = (number + 1) % ACCUMULATE == 0
    if sync_gradients or not REPAIRED:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if sync_gradients:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    if number % 40 == 0:
        print(number, loss.item() * ACCUMULATE)
