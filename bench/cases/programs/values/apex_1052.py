"""RuntimeError: value cannot be converted to type at::Half without overflow: -1e+09.

The attention masks its scores with masked_fill(mask, -1e9). Under mixed precision the scores are float16, whose
smallest number is -65504. People found that -1e4 works, and that float("-inf") does; finfo(dtype).min is the general
form.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


class PathReasoning(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.relation = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 8)

    def forward(self, entities, path_mask):
        scores = self.query(entities) @ self.key(entities).transpose(1, 2)
        scores_mask = scores.masked_fill(~path_mask, torch.finfo(scores.dtype).min if REPAIRED else -1e9)
        return self.relation(scores_mask.softmax(-1) @ entities)


model = PathReasoning()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(60):
    entities, target = torch.randn(8, 6, 32), torch.randint(8, (8, 6))
    path_mask = torch.rand(8, 6, 6) < 0.6
    path_mask[:, range(6), range(6)] = True
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(entities, path_mask).float().transpose(1, 2), target)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 0:
        print(step, loss.item())
