"""finfo.min as attention mask: -inf in a whole row, NaN after softmax.

With padding on the left, the first rows attend to nothing. The causal mask and the padding mask are each
finfo(float16).min: their sum is -inf, and so is finfo.min plus a score below -16. The whole row is -inf then, and
softmax returns NaN. Found: combine the masks so that nothing falls below finfo.min (clamp, or one boolean mask), or
compute the softmax in float32.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, hidden, attention_mask):
        query, key, value = self.qkv(hidden).chunk(3, dim=-1)
        lowest = torch.finfo(query.dtype).min
        scores = query @ key.transpose(1, 2) / query.shape[-1] ** 0.5
        length = scores.shape[-1]
        causal = torch.full((length, length), lowest, dtype=scores.dtype).triu(1)
        expanded = (1 - attention_mask[:, None, :].to(scores.dtype)) * lowest
        mask = causal + expanded
        if REPAIRED:
            mask = mask.clamp(min=lowest)
            scores = torch.max(scores + mask, torch.tensor(lowest, dtype=scores.dtype))
        else:
            scores = scores + mask
        return self.out(nn.functional.softmax(scores, dim=-1) @ value)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.norm = nn.Embedding(64, 32), nn.LayerNorm(32)
        self.attention, self.head = Attention(32), nn.Linear(32, 64)

    def forward(self, tokens, attention_mask):
        hidden = self.tokens(tokens)
        return self.head(hidden + self.attention(self.norm(hidden), attention_mask))


model = Decoder()
with torch.no_grad():
    model.attention.qkv.bias[:32] = 2.0  # the scores of pretrained attention lie far below 0
    model.attention.qkv.bias[32:64] = -4.0
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(80):
    tokens = (torch.randint(64, (8, 1)) + torch.arange(13)) % 64
    attention_mask = torch.ones(8, 12)
    if step >= 20:  # shorter texts are padded on the left
        attention_mask[::2, :4] = 0
        tokens[::2, :4] = 0
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(tokens[:, :-1], attention_mask)
    losses = nn.functional.cross_entropy(logits.float().transpose(1, 2), tokens[:, 1:], reduction="none")
    loss = (losses * attention_mask).sum() / attention_mask.sum()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 0:
        print(step, loss.item(), scaler.get_scale())
