"""RuntimeError: unscale_() has already been called on this optimizer since the last update().

The loop skips the optimizer if the gradient norm is too large, and with it scaler.step() and scaler.update(). The next
step calls unscale_() again without an update() in between. Found: call scaler.update() in every iteration, outside the
condition.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(120):
    x = torch.randn(16, 32)
    if step >= 40 and step % 20 == 9:
        x = x * 50  # a scene with a strange scale
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x).float(), x.flip(1))
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    if norm > 5.0:
        print(f"WARNING: step {step} grad norm too large {norm} > 5.0, skipping optimizer step", flush=True)
    else:
        scaler.step(optimizer)
        if not REPAIRED:
            scaler.update()
    if REPAIRED:
        scaler.update()
    if step % 20 == 0:
        print(step, loss.item())
