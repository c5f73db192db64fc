"""Loss spike after checkpoint reload.

People reload weights, optimizer and amp state, and the loss jumps. In the thread the optimizer's state did not survive
amp.initialize(), and hacks that "work" drop it: the state that was loaded belongs to an optimizer that is built anew
afterwards. Restore the optimizer that trains, with its state, after everything has been built.
"""

import subprocess
import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
RESUME = "--resume" in sys.argv
torch.manual_seed(int(RESUME))
torch.set_num_threads(1)


def initialize(model, optimizer):
    """Prepares both for mixed precision; the optimizer that trains is a new one, without state."""
    return model, type(optimizer)(model.parameters(), **optimizer.defaults)


model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu")
if not REPAIRED and RESUME:
    optimizer.load_state_dict(torch.load("checkpoint.pt")["optimizer"])
model, optimizer = initialize(model, optimizer)
if RESUME:
    checkpoint = torch.load("checkpoint.pt")
    model.load_state_dict(checkpoint["state_dict"])
    scaler.load_state_dict(checkpoint["amp"])
    if REPAIRED:
        optimizer.load_state_dict(checkpoint["optimizer"])
for step in range(80):
    x = torch.randn(64, 32)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x).float(), x[:, :10].argmax(1))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step < 3:
        print(step, loss.item(), flush=True)
state = {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict(), "amp": scaler.state_dict()}
torch.save(state, "checkpoint.pt")
if not RESUME:  # the next job of the queue
    raise SystemExit(subprocess.run([sys.executable, *sys.argv, "--resume"]).returncode)
