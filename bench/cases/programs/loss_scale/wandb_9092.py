"""Gradients get massive in the charts, and their variance falls suddenly.

wandb logs gradients while they are scaled. The sudden fall in the chart of the report was another thing: its author
had reset the GradScaler by accident, here with the new scaler of each epoch. The scale jumps back to 65536 and has to
be found again.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


def run_epoch(model, optimizer, scaler, losses):
    for _ in range(40):
        x = torch.randn(64, 32)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = (model(x).float() - x.cumsum(1)).square().sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())


model = nn.Sequential(nn.Linear(32, 128), nn.SiLU(), nn.Linear(128, 32))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
losses = []
for epoch in range(4):
    if not REPAIRED:
        scaler = torch.amp.GradScaler("cpu")
    run_epoch(model, optimizer, scaler, losses)
    print(epoch, sum(losses[-40:]) / 40, scaler.get_scale())
