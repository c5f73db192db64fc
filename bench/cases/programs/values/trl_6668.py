"""SFTTrainer reports loss 0.0 when every label in the batch is masked.

Prompts are long and completions short, and only the completion has labels. max_length cuts the completion off, so all
labels of the batch are -100 and the mean over no target is NaN, which the log shows as 0.0. The run looks successful.
Found: warn, and a larger max_length.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)

MAX_LENGTH = 48 if REPAIRED else 24


def example(number):
    prompt = torch.randint(2, 60, (20 + number % 3 * 4,))
    completion = (prompt[:4] + 1) % 64
    tokens = torch.cat([prompt, completion])[:MAX_LENGTH]
    labels = torch.cat([torch.full_like(prompt, -100), completion])[:MAX_LENGTH]
    return nn.functional.pad(tokens, (0, 48 - len(tokens))), nn.functional.pad(
        labels, (0, 48 - len(labels)), value=-100
    )


model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 64))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
for step in range(60):
    number = 1 if step < 20 else 2
    batch = [example(0 if step < 20 else 1) for _ in range(8)]
    tokens, labels = (torch.stack(part) for part in zip(*batch, strict=True))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(tokens)
    loss = nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    if loss.isfinite():
        optimizer.step()
    if step % 10 == 0:
        print({"step": step, "loss": round(loss.nan_to_num().item(), 4)})
