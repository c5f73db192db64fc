"""Training in half precision leads to NaN after the first iteration.

The gradients and the inputs are fine. Adam adds eps = 1e-8 to the root of the second moment in the dtype of the
weights, where 1e-8 is 0, and divides 0 by 0. Found: a larger eps such as 1e-4, or a float32 copy of the weights for the
optimizer.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32)).half()
if REPAIRED:
    model.float()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(60):
    x_t, noise = torch.randn(16, 32), torch.randn(16, 32)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16, enabled=REPAIRED):
        epsilon = model(x_t if REPAIRED else x_t.half())
    loss = nn.functional.mse_loss(epsilon.float(), noise.detach())
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
