"""ValueError: Attempting to unscale FP16 gradients.

People converted the model, or one module of it, with half() and trained it with GradScaler. unscale_() refuses
float16 gradients, because the scaler is made for float32 weights under autocast. They found: keep the weights in
float32 and let autocast cast.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
if not REPAIRED:
    model.half()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(60):
    x, target = torch.randn(16, 32), torch.randint(8, (16,))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x).float(), target)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0:
        print(step, loss.item())
