"""The EMA of a model with bfloat16 weights never changes.

The averaged copy had the dtype of the weights. Each update moves it by 0.001 of a difference that
is itself small, and bfloat16 cannot represent a change of a thousandth of a value: almost every
update was rounded to nothing. The fix keeps the EMA in float32, whatever dtype the weights have.
"""

import copy
import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv

torch.manual_seed(0)
torch.set_num_threads(1)
wide = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32))
unet = copy.deepcopy(wide).to(torch.bfloat16)
ema = torch.optim.swa_utils.AveragedModel(
    copy.deepcopy(wide) if REPAIRED else unet, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999)
)
optimizer = torch.optim.AdamW(wide.parameters(), lr=1e-3)  # the float32 masters of the weights
latents = torch.randn(512, 32)
for _ in range(150):
    clean = latents[torch.randint(0, 512, (16,))]
    noise = torch.randn_like(clean)
    predicted = unet((clean + noise).to(torch.bfloat16))
    loss = nn.functional.mse_loss(predicted.float(), noise)
    unet.zero_grad()
    loss.backward()
    for master, weight in zip(wide.parameters(), unet.parameters(), strict=True):
        master.grad = None if weight.grad is None else weight.grad.float()
    optimizer.step()
    with torch.no_grad():
        for master, weight in zip(wide.parameters(), unet.parameters(), strict=True):
            weight.copy_(master)
    ema.update_parameters(wide if REPAIRED else unet)
