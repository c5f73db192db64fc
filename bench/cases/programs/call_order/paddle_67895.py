"""The scaling factor falls to zero, and the gradients stay NaN or Inf.

A single overflow should halve the scale once. Here the scale falls at every step and the gradients remain bad. After
some debugging the author found that the gradients were never cleared: the bad values of one step are added to all later
ones. Clearing the gradients solved it.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
for step in range(80):
    x, target = torch.randn(64, 32), torch.randn(64, 8)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = (model(x).float() - target).square().sum(1).mean() * 8
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if REPAIRED:
        optimizer.zero_grad()
    if step % 10 == 0:
        print(step, loss.item(), scaler.get_scale())
