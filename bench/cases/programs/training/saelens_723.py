"""A trainer of sparse autoencoders routes every step through a GradScaler that has nothing to do.

All its autocast contexts are bfloat16, which has the range of float32: nothing underflows. The
scaler costs a scale, an unscale and a check per step, can skip steps silently, and raises for
bfloat16 parameters. It was removed.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv

torch.manual_seed(0)
torch.set_num_threads(1)
encoder, decoder = nn.Linear(32, 128), nn.Linear(128, 32)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
scaler = torch.amp.GradScaler("cpu", enabled=not REPAIRED)
activations = torch.randn(512, 32)
for _ in range(80):
    batch = activations[torch.randint(0, 512, (32,))]
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = torch.relu(encoder(batch))
        reconstructed = decoder(features)
    loss = (reconstructed.float() - batch).square().mean() + 1e-3 * features.float().abs().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_([*encoder.parameters(), *decoder.parameters()], 1.0)
    scaler.step(optimizer)
    scaler.update()
