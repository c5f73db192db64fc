"""Training under AMP recovers from an overflow, but every evaluation is NaN from then on.

One batch made a convolution overflow in float16. The scaler skipped that step, and BatchNorm had
already averaged the Inf into its running mean and variance, where it stays. The training uses the
statistics of the batch and never shows it; evaluation and the checkpoint use the running ones.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv


class Convolution(nn.Conv2d):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=not REPAIRED and torch.is_autocast_enabled("cpu")):
            return super().forward(inputs.float())


torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(
    Convolution(3, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(16, 4),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
images, labels = torch.rand(128, 3, 8, 8), torch.randint(0, 4, (128,))
for step in range(100):
    chosen = torch.randint(0, 128, (16,))
    batch = images[chosen]
    if step == 30:
        batch = batch.clone()
        batch[0, :, 3, 3] = 60000.0 * torch.sign(model[0].weight[0, :, 1, 1].detach())
        with torch.no_grad():
            batch[0, :, 2:5, 2:5] = 60000.0 * torch.sign(model[0].weight[0])
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(batch).float(), labels[chosen])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
