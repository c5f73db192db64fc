"""A training enters autocast without a dtype and has no GradScaler: small gradients become zero.

On a GPU that is float16, whose smallest normal number is 6e-5. Gradients below it are rounded
away without an error, and the loss curve flattens as if the model had converged. The fix is
bfloat16, or a GradScaler.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
DTYPE = torch.bfloat16 if REPAIRED else torch.float16  # on a CPU autocast without a dtype is bfloat16

torch.manual_seed(0)
torch.set_num_threads(1)
trunk = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
points, rays = nn.Linear(64, 3), nn.Linear(64, 3)
parameters = [*trunk.parameters(), *points.parameters(), *rays.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=1e-3)
images, pointmaps = torch.randn(512, 24), 10.0 * torch.randn(512, 3)
raymaps = nn.functional.normalize(torch.randn(512, 3), dim=-1)
for _ in range(100):
    chosen = torch.randint(0, 512, (64,))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=DTYPE):
        hidden = trunk(images[chosen])
        point, ray = points(hidden), rays(hidden)
    cosine = 1 - nn.functional.cosine_similarity(ray.float(), raymaps[chosen], dim=-1)
    loss = 1e-3 * (point.float() - pointmaps[chosen]).square().mean() + 1e-3 * cosine.mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
