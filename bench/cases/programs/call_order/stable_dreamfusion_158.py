"""A custom backward does not account for gradient scaling.

SpecifyGradient returns its own gradient and ignores the one that arrives, which carries the loss scale. scaler.step()
then divides a gradient that was never multiplied, while the other losses are scaled as usual. Found: multiply the
gradient by the one that arrives.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


class SpecifyGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, latents, gt_grad):
        ctx.save_for_backward(gt_grad)
        return latents.new_ones(1)

    @staticmethod
    def backward(ctx, grad_scale):
        (gt_grad,) = ctx.saved_tensors
        return (gt_grad * grad_scale if REPAIRED else gt_grad), None


nerf = nn.Sequential(nn.Linear(16, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 64))
optimizer = torch.optim.SGD(nerf.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
wanted = torch.randn(16, 64)
for step in range(120):
    rays = torch.randn(64, 16)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        latents = nerf(rays)
    score = (latents.detach().float() - rays @ wanted) / latents.numel()  # what a diffusion model would answer
    loss = SpecifyGradient.apply(latents.float(), score)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0:
        print(step, (latents.float() - rays @ wanted).square().mean().item())
