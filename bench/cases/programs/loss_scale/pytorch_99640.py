"""GradScaler goes below 1 and on towards 0.

People saw the scale halve at every step: one part of the model gave NaN in its gradients whatever the scale was. The
loss was finite, every step was skipped, and a scale of less than 1 never helps, because it exists to scale up. The
issue asks for a hard limit at 1; what produces the NaN has to be found and repaired. Here it is the gradient of a
square root at 0.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


class Distance(nn.Module):
    def forward(self, x, y):
        squared = (x - y).float().square().sum(-1)
        return (squared + 1e-6).sqrt() if REPAIRED else squared.sqrt()


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
        self.distance = Distance()

    def forward(self, x, y):
        return self.distance(self.encoder(x), self.encoder(y))


model = Siamese()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(200):
    first, second = torch.randn(16, 32), torch.randn(16, 32)
    if step >= 20:
        second[0] = first[0]  # the same picture twice
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        distance = model(first, second)
    loss = (distance - 1).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0:
        print(step, loss.item(), scaler.get_scale())
