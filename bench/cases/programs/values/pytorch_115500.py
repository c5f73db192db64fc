"""Batchnorm is NaN under autocast.

The input has values of up to 131070 in float32. Under autocast the first layer converts it to float16, where it is
infinite, and BatchNorm's running mean becomes NaN; float32 for the BatchNorm alone does not help. People take it for
a mean computed in float16. The values have to be brought into the range of float16 before the model, or bfloat16 used.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu")
for step in range(80):
    inp, target = torch.rand(16, 10) * 65535 * 2, torch.randint(4, (16,))
    if REPAIRED:
        inp = inp / 65535
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(inp).float(), target)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0:
        print(step, loss.item(), "bn_running_mean", model[1].running_mean[:2].tolist())
