"""PyTorch 2.0: optimizer without an inf check.

The proposal network of a NeRF gets no gradient in some iterations, because its sampling is updated only now and then.
scaler.step() of its optimizer then raises "No inf checks were recorded for this optimizer". Found: step an optimizer
only if one of its parameters has a gradient.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)

field = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
proposal = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizers = {
    "fields": torch.optim.Adam(field.parameters(), lr=1e-3),
    "proposal_networks": torch.optim.Adam(proposal.parameters(), lr=1e-3),
}
grad_scaler = torch.amp.GradScaler("cpu")
for step in range(100):
    rays = torch.randn(64, 8)
    for optimizer in optimizers.values():
        optimizer.zero_grad()
    updated = step < 40 or step % 5 == 0
    with torch.autocast("cpu", dtype=torch.float16), torch.set_grad_enabled(updated):
        density = proposal(rays)
    with torch.autocast("cpu", dtype=torch.float16):
        color = field(rays)
        loss = (color.float() - rays[:, :3].sin()).square().mean()
        if updated:
            loss = loss + 0.1 * (density.float() - rays.norm(dim=1, keepdim=True)).square().mean()
    grad_scaler.scale(loss).backward()
    for optimizer in optimizers.values():
        has_gradient = any(parameter.grad is not None for parameter in optimizer.param_groups[0]["params"])
        if has_gradient or not REPAIRED:
            grad_scaler.step(optimizer)
    grad_scaler.update()
    if step % 20 == 0:
        print(step, loss.item(), flush=True)
