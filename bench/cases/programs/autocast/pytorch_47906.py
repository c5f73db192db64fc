"""RoIAlign of a detector raises under autocast: expected scalar type Half but found Float.

The features come out of a convolution in half precision, the boxes are float32, and the operator
wants one dtype. Decorating its forward and backward with custom_fwd and custom_bwd without
arguments only passes the autocast state on; custom_fwd(cast_inputs=torch.float32) casts both.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.amp import custom_bwd, custom_fwd

REPAIRED = "--repaired" in sys.argv
forwarded: Callable[[Any], Any] = custom_fwd(device_type="cpu", cast_inputs=torch.float32 if REPAIRED else None)
backwarded: Callable[[Any], Any] = custom_bwd(device_type="cpu")


class RoIAlign(torch.autograd.Function):
    """Averages each image's features with weights that its box gives."""

    @staticmethod
    @forwarded
    def forward(ctx: Any, features: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(features, boxes)
        with torch.autocast("cpu", enabled=False):
            return torch.bmm(features.flatten(2), boxes.unsqueeze(-1)).squeeze(-1)

    @staticmethod
    @backwarded
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        features, boxes = ctx.saved_tensors
        return (grad.unsqueeze(-1) * boxes.unsqueeze(1)).view_as(features), None


torch.manual_seed(0)
torch.set_num_threads(1)
backbone = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1))
head = nn.Linear(32, 5)
optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
images, labels = torch.randn(64, 3, 8, 8), torch.randint(0, 5, (64,))
boxes = torch.softmax(torch.randn(64, 64), -1)
for _ in range(60):
    chosen = torch.randint(0, 64, (8,))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        pooled = RoIAlign.apply(backbone(images[chosen]), boxes[chosen])
        loss = nn.functional.cross_entropy(head(pooled).float(), labels[chosen])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
