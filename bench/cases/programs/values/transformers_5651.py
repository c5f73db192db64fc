"""T5 in float16: overflow in the forward pass of T5DenseReluDense.

After some iterations the loss is NaN. The author followed it to `h = self.wo(h)`, whose output has an inf: in float32
the value is 66246, and float16 ends at 65504. Answers: T5 was trained in bfloat16, so use bfloat16 or float32 there, or
clamp the hidden states.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


class T5DenseReluDense(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.wi = nn.Linear(width, inner, bias=False)
        self.wo = nn.Linear(inner, width, bias=False)

    def forward(self, h):
        return self.wo(self.wi(h).relu())


class Block(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.layer_norm = nn.RMSNorm(width)
        self.DenseReluDense = T5DenseReluDense(width, inner)

    def forward(self, h):
        return h + self.DenseReluDense(self.layer_norm(h))


class T5(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Embedding(128, 64)
        self.block = nn.ModuleList([Block(64, 256) for _ in range(2)])
        self.final_layer_norm = nn.RMSNorm(64)
        self.lm_head = nn.Linear(64, 128, bias=False)

    def forward(self, tokens):
        h = self.shared(tokens)
        for block in self.block:
            h = block(h)
        return self.lm_head(self.final_layer_norm(h))


model = T5()
with torch.no_grad():
    model.block[1].DenseReluDense.wi.weight.mul_(200)  # what a pretrained T5 brings with it
    model.block[1].DenseReluDense.wo.weight.mul_(200)
    model.block[1].layer_norm.weight[:8] *= 3
    model.shared.weight[112:, :8] *= 8
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", enabled=not REPAIRED)
for iteration in range(100):
    tokens = (torch.randint(112, (8, 1)) + torch.arange(17)) % (112 if iteration < 34 else 128)  # later, rare words
    with torch.autocast("cpu", dtype=torch.bfloat16 if REPAIRED else torch.float16):
        logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if iteration % 10 == 0:
        print(iteration, loss.item(), scaler.get_scale())
