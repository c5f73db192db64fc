"""Gradient clipping and the double call of scaler.update().

Generator and discriminator share a GradScaler, and each of their steps is followed by scaler.update(). The scale can
change between the two, and growth is counted twice per iteration. Found in the documentation: update() is called once,
after all optimizers of the iteration have stepped.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)

net_g = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 32))
net_d = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
optim_g = torch.optim.AdamW(net_g.parameters(), lr=2e-4)
optim_d = torch.optim.AdamW(net_d.parameters(), lr=2e-4)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**11)
criterion = nn.BCEWithLogitsLoss()
for step in range(100):
    real, z = torch.randn(32, 32), torch.randn(32, 16)
    with torch.autocast("cpu", dtype=torch.float16):
        fake = net_g(z)
        for parameter in net_d.parameters():
            parameter.requires_grad = False
        loss_g = criterion(net_d(fake).float(), torch.ones(32, 1)) + (fake.float() - real).abs().mean()
    optim_g.zero_grad()
    scaler.scale(loss_g).backward()
    scaler.unscale_(optim_g)
    nn.utils.clip_grad_norm_(net_g.parameters(), 1.0)
    for parameter in net_d.parameters():
        parameter.requires_grad = True
    if not REPAIRED:
        scaler.step(optim_g)
        scaler.update()
    optim_d.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss_real = criterion(net_d(real).float(), torch.ones(32, 1))
        loss_fake = criterion(net_d(fake.detach()).float(), torch.zeros(32, 1))
    scaler.scale(loss_real + loss_fake).backward()
    scaler.unscale_(optim_d)
    nn.utils.clip_grad_norm_(net_d.parameters(), 1.0)
    if REPAIRED:
        scaler.step(optim_g)
    scaler.step(optim_d)
    scaler.update()
    if step % 20 == 0:
        print(step, loss_g.item(), (loss_real + loss_fake).item())
