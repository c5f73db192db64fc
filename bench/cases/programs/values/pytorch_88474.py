"""Mixed precision training fails due to NaN in batch norm running_mean.

A forward pass overflows in float16. GradScaler skips the step, so the weights are fine, but BatchNorm has already
added the bad batch to its running statistics. Training goes on, because it does not use them; validation is NaN from
then on. Found: the statistics have to be kept from, or restored after, a bad batch.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)

network = nn.Sequential(
    nn.Conv1d(3, 16, 3, padding=1),
    nn.BatchNorm1d(16),
    nn.ReLU(),
    nn.AdaptiveAvgPool1d(1),
    nn.Flatten(),
    nn.Linear(16, 4),
)
optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu")
for step in range(120):
    data, target = torch.rand(16, 3, 10), torch.randint(4, (16,))
    if step == 50:
        data = data * 100000  # one broken file
    if REPAIRED:
        data = data.clamp(max=100)
    network.train()
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(network(data).float(), target)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 19:
        network.eval()
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
            outputs = network(torch.rand(16, 3, 10))
        print(step, loss.item(), "validation", outputs.float().mean().item())
