"""scaler.step() skips a step and returns nothing that says so.

People add an expensive loss every 16 steps and multiply it by 16. The scale that fits the usual loss overflows with it,
so exactly these steps are skipped, while the scale grows back in between. They would never know: it is as if the
extra loss did not exist. They ask for a return value. The remedy here is a growth interval that is longer than the
period, so that the scale stays where the extra loss fits.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)

generator = nn.Sequential(nn.Linear(32, 128), nn.SiLU(), nn.Linear(128, 64))
optimizer = torch.optim.Adam(generator.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2000 if REPAIRED else 10)
for step in range(400):
    z, target = torch.randn(32, 32), torch.randn(32, 64)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        picture = generator(z)
        loss = nn.functional.mse_loss(picture.float(), target)
        if step % 16 == 15:  # lazy regularization
            roughness = (picture.float().diff(dim=1) * 30).square().sum(1).mean()
            loss = loss + 16 * roughness
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 16 == 15:
        print(step, loss.item(), scaler.get_scale())
