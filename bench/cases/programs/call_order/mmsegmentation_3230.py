"""No inf checks were recorded for this optimizer.

A custom segmentation loss computes its values and ends with torch.tensor(w, requires_grad=True). That is a new leaf:
backward() runs and reaches no parameter, so the scaler finds no gradient to check. The loss has to be computed by
operations on the prediction that keep its graph.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


def boundary_loss(prediction, target):
    probability = prediction.float().sigmoid()
    edges = (probability.diff(dim=-1) - target.diff(dim=-1)).square().flatten(1).mean(1)
    if REPAIRED:
        return edges.mean()
    w = [edge.item() for edge in edges]
    return torch.tensor(w, dtype=torch.float32, requires_grad=True).mean()


model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
loss_scaler = torch.amp.GradScaler("cpu")
for iteration in range(60):
    image, mask = torch.randn(4, 3, 24, 24), (torch.rand(4, 1, 24, 24) > 0.5).float()
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        prediction = model(image)
    loss = boundary_loss(prediction, mask)
    loss_scaler.scale(loss).backward()
    loss_scaler.unscale_(optimizer)
    loss_scaler.step(optimizer)
    loss_scaler.update()
    if iteration % 20 == 0:
        print(iteration, loss.item())
