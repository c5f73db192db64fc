"""NaN value in loss when running AMP training with B580.

The script trains under float16 autocast on a device that is not CUDA and creates GradScaler without naming the device.
Such a scaler disables itself with a warning, and everything runs without loss scaling. The answer: pass the device,
torch.amp.GradScaler(device="xpu").
"""

import sys
import warnings

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)
warnings.simplefilter("ignore")  # it is one line among many

DEVICE = "cpu"
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10)
)
model.to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
criterion = nn.CrossEntropyLoss()
scaler = torch.amp.GradScaler(device=DEVICE, enabled=True) if REPAIRED else torch.amp.GradScaler(enabled=True)
model.train()
for batch in range(60):
    data, target = torch.randn(16, 3, 16, 16, device=DEVICE), torch.randint(10, (16,), device=DEVICE)
    optimizer.zero_grad()
    with torch.autocast(DEVICE, dtype=torch.float16):
        output = model(data)
        loss = criterion(output, target)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if (batch + 1) % 10 == 0:
        print(f"Iteration [{batch + 1}/60], Loss: {loss.item():.4f}")
