"""The test loss of an image classifier is NaN in many epochs while the training loss is normal.

The training forces a part of the forward pass to float32. In the test phase, under no_grad, that
part ran entirely in float16, and a running sum over the image passed 65504. The fix gives the test
phase the same float32 part.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv


class SelectiveScan(nn.Module):
    """A recurrence over the pixels, h = h * a + b * x, written as a sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.delta, self.gain = nn.Linear(width, width), nn.Parameter(torch.full((width,), 200.0))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        wide = torch.is_grad_enabled() or REPAIRED
        delta = nn.functional.softplus(self.delta(inputs)) * self.gain
        states = (delta.float() if wide else delta.half()) * (inputs + 2.0).to(torch.float32 if wide else torch.half)
        scanned = states.cumsum(1)
        return scanned / scanned.square().mean(-1, keepdim=True).sqrt()


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.scan, self.head = nn.Linear(12, 32), SelectiveScan(32), nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.scan(torch.tanh(self.patches(images))).mean(1))
        return logits


torch.manual_seed(0)
torch.set_num_threads(1)
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
images, labels = torch.randn(128, 256, 12), torch.randint(0, 10, (128,))
for epoch in range(5):
    model.train()
    for batch in torch.randperm(96).split(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images[batch]).float(), labels[batch])
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        test = nn.functional.cross_entropy(model(images[96:]).float(), labels[96:])
    print(f"epoch {epoch} train {loss.item():.3f} test {test.item():.3f}")
