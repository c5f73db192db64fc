"""AssertionError: No inf checks were recorded for this optimizer.

The optimizer is built from the parameters of the model, and then the model that is trained has other ones: in the
thread it was moved to the device afterwards. No parameter of the optimizer ever has a gradient. Found: move the model
before you build the optimizer.
"""

import copy
import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


def prepare(model):
    """Places the model where it trains; its parameters are new tensors."""
    return copy.deepcopy(model)


model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
if REPAIRED:
    model = prepare(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if not REPAIRED:
    model = prepare(model)
scaler = torch.amp.GradScaler("cpu")
for step in range(60):
    x, target = torch.randn(16, 32), torch.randint(8, (16,))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x).float(), target)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0:
        print(step, loss.item())
