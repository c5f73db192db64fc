"""Mixed precision was half-baked: the weights themselves are bfloat16.

Adam computes its update in float32 and writes it back to bfloat16. With a learning rate of 6e-4 a weight of 1.0 becomes
0.9994, which rounds to 1.0; after 100 steps no weight has moved. Found: a float32 master copy of the weights, of which
the bfloat16 ones are made.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 32))
with torch.no_grad():
    for parameter in model.parameters():
        parameter.add_(parameter.sign())  # of the order of 1
if not REPAIRED:
    model.bfloat16()
optimizer = torch.optim.Adam(model.parameters(), lr=6e-4)
for step in range(100):
    x = torch.randn(64, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(x).float(), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, loss.item())
