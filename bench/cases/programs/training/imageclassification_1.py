"""The loss of a ResNet becomes NaN after thousands of iterations with AMP, at any learning rate.

The author found the mistake: the fp16 branch calls scaler.step(optimizer), and the unindented
optimizer.step() after the if runs for both branches. Each update is made twice, and the step that
the scaler skips for an overflow is made all the same, with gradients of Inf.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 5)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=20)
criterion = nn.CrossEntropyLoss()
images, labels = torch.randn(128, 3, 8, 8), torch.randint(0, 5, (128,))
fp16 = True
for _ in range(150):
    chosen = torch.randint(0, 128, (16,))
    optimizer.zero_grad()
    if fp16:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = criterion(model(images[chosen]).float(), labels[chosen])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        loss = criterion(model(images[chosen]), labels[chosen])
        loss.backward()
    if not fp16 or not REPAIRED:
        optimizer.step()
