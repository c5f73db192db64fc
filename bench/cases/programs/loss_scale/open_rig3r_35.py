"""autocast defaults to float16 with no GradScaler: gradients can silently underflow to zero.

train.py enters autocast without a dtype, which is float16 on CUDA, and there is no scaler in the file. Small gradients
vanish without an error or NaN; the loss curve flattens early, which reads as convergence. Found: bfloat16, which needs
no scaler, or a GradScaler.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)

backbone = nn.Sequential(nn.Linear(48, 128), nn.GELU(), nn.Linear(128, 64), nn.GELU())
pointmap, rays = nn.Linear(64, 3), nn.Linear(64, 3)
parameters = [*backbone.parameters(), *pointmap.parameters(), *rays.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=1e-3)
dtype = torch.bfloat16 if REPAIRED else torch.float16
for step in range(120):
    patches = torch.randn(4096, 48)
    points, directions = patches[:, :3], nn.functional.normalize(patches[:, 3:6], dim=-1)
    optimizer.zero_grad()
    with torch.autocast(device_type="cpu", dtype=dtype):
        features = backbone(patches)
        depth = (pointmap(features) - points).square().mean()
        cosine = 1 - nn.functional.cosine_similarity(rays(features).float(), directions, dim=-1).mean()
        loss = 0.001 * depth + 0.001 * cosine
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    if step % 20 == 0:
        print(step, loss.item())
