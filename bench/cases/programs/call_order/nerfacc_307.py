"""The sample scales the loss with GradScaler and does not use it for the update.

grad_scaler.scale(loss).backward() is followed by optimizer.step(), so the gradients are 1024 times as large as they
should be. Adam hides it, apart from its eps and the clip. The author of the question had built on this sample without
noticing. The remedy is scaler.step(optimizer) and scaler.update().
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)

radiance_field = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
optimizer = torch.optim.Adam(radiance_field.parameters(), lr=1e-2, eps=1e-15)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[60, 90], gamma=0.33)
grad_scaler = torch.amp.GradScaler("cpu", init_scale=2**10)
for step in range(120):
    radiance_field.train()
    rays = torch.rand(256, 6)
    with torch.autocast("cpu", dtype=torch.float16):
        rgb = radiance_field(rays)
    loss = nn.functional.smooth_l1_loss(rgb.float(), (rays[:, :3] * 6).sin())
    optimizer.zero_grad()
    # do not unscale it because we are using Adam.
    grad_scaler.scale(loss).backward()
    if REPAIRED:
        grad_scaler.step(optimizer)
        grad_scaler.update()
    else:
        optimizer.step()
    scheduler.step()
    if step % 20 == 0:
        print(step, loss.item())
