"""Restore GradScaler on resuming training.

People resumed a training with mixed precision and saw it unstable at first. The checkpoint had weights, optimizer and
epoch, and not the state of GradScaler, which began again at its initial scale. The change saves scaler.state_dict() and
loads it on resume.
"""

import subprocess
import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
RESUME = "--resume" in sys.argv
torch.manual_seed(int(RESUME))
torch.set_num_threads(1)

model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.SiLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 16)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
start_epoch = 0
if RESUME:
    ckpt = torch.load("last.pt")
    model.load_state_dict(ckpt["model"])
    optimizer.load_state_dict(ckpt["optimizer"])
    start_epoch = ckpt["epoch"] + 1
    if "scaler" in ckpt:
        scaler.load_state_dict(ckpt["scaler"])
for epoch in range(start_epoch, start_epoch + 3):
    for _ in range(30):
        image = torch.randn(8, 3, 16, 16)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            boxes = model(image)
        loss = (boxes.float() - image.mean((1, 2, 3))[:, None]).square().sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimizer)
        scaler.update()
    print(epoch, loss.item(), scaler.get_scale(), flush=True)
    ckpt = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if REPAIRED:
        ckpt["scaler"] = scaler.state_dict()
    torch.save(ckpt, "last.pt")
if not RESUME:  # the next job of the queue
    raise SystemExit(subprocess.run([sys.executable, *sys.argv, "--resume"]).returncode)
