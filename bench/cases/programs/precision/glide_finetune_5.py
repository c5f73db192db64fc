"""The model is NaN after one step in half precision, although inputs and gradients are normal.

The weights were float16 and so were Adam's moments. Its eps of 1e-8 is zero in float16, and so is
the square of a small gradient: the update divides zero by zero. The fix of the thread raises eps
to 1e-4; later answers keep the weights in float32.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(48, 64), nn.SiLU(), nn.Linear(64, 48)).half()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, eps=1e-4 if REPAIRED else 1e-8)
images = torch.randn(256, 48).half()
for _ in range(40):
    clean = images[torch.randint(0, 256, (16,))]
    noise = torch.randn_like(clean)
    loss = nn.functional.mse_loss(model(clean + noise), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
