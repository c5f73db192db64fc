"""The minGPT example clips gradients that are still scaled.

Its trainer calls clip_grad_norm_() after scaler.scale(loss).backward() without scaler.unscale_(optimizer), so a limit
of 1.0 is compared with gradients that are 65536 times too large, and hardly anything is left of them. The issue asks
to add unscale_() before the clip.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(32, 64)

    def forward(self, tokens):
        return self.head(self.block(self.embedding(tokens)))


def run_batch(model, optimizer, scaler, tokens):
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    if REPAIRED:
        scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


model = Language()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
scaler = torch.amp.GradScaler("cpu")
for step in range(80):
    start = torch.randint(64, (16, 1))
    tokens = (start + torch.arange(17) * 3) % 64
    loss = run_batch(model, optimizer, scaler, tokens)
    if step % 20 == 0:
        print(step, loss)
