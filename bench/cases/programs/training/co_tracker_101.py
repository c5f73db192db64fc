"""The loss and accuracy curves have a break where a mixed-precision training was resumed.

The checkpoint had model, optimizer and scheduler, and not the GradScaler. The resumed run began
at the initial loss scale. With the scaler's state in the checkpoint the curve went on smoothly.
"""

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
CHECKPOINT = Path(tempfile.mkdtemp()) / "model_000060.pth"
torch.manual_seed(0)
torch.set_num_threads(1)
frames, tracks = torch.randn(256, 24), torch.randn(256, 8)


def train(first: int, last: int) -> None:
    model = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, 200)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=15)
    if first:
        saved = torch.load(CHECKPOINT)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        if REPAIRED:
            scaler.load_state_dict(saved["scaler"])
    for _ in range(first, last):
        chosen = torch.randint(0, 256, (16,))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.smooth_l1_loss(model(frames[chosen]).float(), tracks[chosen])
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimizer)
        scheduler.step()
        scaler.update()
    states = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    if REPAIRED:
        states["scaler"] = scaler
    torch.save({name: part.state_dict() for name, part in states.items()}, CHECKPOINT)


if "--resume" in sys.argv:
    CHECKPOINT = Path(sys.argv[sys.argv.index("--resume") + 1])
    train(60, 150)
else:
    train(0, 60)
    train(60, 150)
