"""The EMA weights never change.

With a weight dtype of float16 or bfloat16 the copy for the moving average is in that dtype too. An update of a
thousandth of the difference is below the precision of the weight and is rounded to nothing. Found: always keep the EMA
model in float32.
"""

import copy
import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


class EMAModel:
    def __init__(self, model, decay=0.9995, dtype=torch.bfloat16):
        self.averaged_model = copy.deepcopy(model).to(torch.float32 if REPAIRED else dtype).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def step(self, model):
        for average, parameter in zip(self.averaged_model.parameters(), model.parameters(), strict=True):
            average.mul_(self.decay).add_(parameter.to(average.dtype), alpha=1 - self.decay)


unet = nn.Sequential(nn.Linear(32, 128), nn.SiLU(), nn.Linear(128, 32))
ema = EMAModel(unet)
optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-3)
for step in range(200):
    latents, noise = torch.randn(32, 32), torch.randn(32, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        prediction = unet(latents + noise)
    loss = nn.functional.mse_loss(prediction.float(), noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    ema.step(unet)
    if step % 40 == 0:
        moved = (ema.averaged_model[0].weight.float() - unet[0].weight).norm().item()
        print(step, loss.item(), "distance of the average", moved)
