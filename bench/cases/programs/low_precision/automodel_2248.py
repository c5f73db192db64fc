"""torch_dtype: bfloat16 with AdamW keeps the optimizer's moments in bfloat16, too.

The moving averages of AdamW follow the dtype of the weights. With 8 bits a small change of an average is rounded away:
gradient norms become unstable, the loss has bumps or converges late. Changing the dtype of the reduction does not
help. Found: float32 weights and therefore float32 state, with bfloat16 for the computation.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Embedding(128, 64), nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 128))
model.to(torch.float32 if REPAIRED else torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999))
for step in range(120):
    tokens = (torch.randint(128, (8, 1)) + 5 * torch.arange(17)) % 128
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0:
        print(step, loss.item())
