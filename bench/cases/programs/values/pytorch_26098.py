"""multi_head_attention_forward produces NaN.

People pass a random key_padding_mask; in some rows it masks every key. The scores of such a row are all -inf, and their
softmax is NaN. It is no matter of precision. Remedies of the thread: a large negative number instead of -inf, or do not
mask a whole row.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


def multi_head_attention_forward(query, key, value, heads, key_padding_mask):
    batch, length, width = query.shape
    query, key, value = (x.view(batch, length, heads, width // heads).transpose(1, 2) for x in (query, key, value))
    attn_output_weights = query @ key.transpose(-1, -2) * (width // heads) ** -0.5
    masked = torch.finfo(attn_output_weights.dtype).min if REPAIRED else float("-inf")
    attn_output_weights = attn_output_weights.masked_fill(key_padding_mask[:, None, None, :], masked)
    attn_output_weights = attn_output_weights.softmax(dim=-1)
    return (attn_output_weights @ value).transpose(1, 2).reshape(batch, length, width)


class EncoderLayer(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads, self.in_proj, self.out_proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, src, src_key_padding_mask):
        query, key, value = self.in_proj(src).chunk(3, dim=-1)
        attended = multi_head_attention_forward(query, key, value, self.heads, src_key_padding_mask)
        return self.norm(src + self.out_proj(attended))


encoder, head = nn.ModuleList([EncoderLayer(), EncoderLayer()]), nn.Linear(32, 4)
parameters = [*encoder.parameters(), *head.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=1e-3)
for step in range(100):
    src, target = torch.randn(16, 6, 32), torch.randint(4, (16,))
    padding_mask = torch.rand(16, 6) < (0.1 if step < 30 else 0.7)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = src
        for layer in encoder:
            out = layer(out, padding_mask)
        loss = nn.functional.cross_entropy(head(out.mean(1)).float(), target)
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
