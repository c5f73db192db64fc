"""The evaluation loss is NaN with label smoothing and a float16 model, and the metrics are fine.

Label smoothing sums the log-probabilities over the whole vocabulary, 30,000 numbers of about -10.
The evaluation runs the model in float16, where that sum is beyond 65504: Inf, which a GPU then
divides by a count that is Inf in float16 as well. The fix takes the sum in float32.
"""

import copy
import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
VOCABULARY = 16000


def smoothed(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    log_probs = -nn.functional.log_softmax(logits, dim=-1)
    nll = log_probs.gather(-1, labels.unsqueeze(-1))
    smooth = log_probs.sum(-1, keepdim=True, dtype=torch.float32 if REPAIRED else None)
    padding = labels.unsqueeze(-1).eq(0)
    active = padding.numel() - padding.long().sum()
    nll = nll.masked_fill(padding, 0.0).sum() / active
    return 0.9 * nll + 0.1 * (smooth.masked_fill(padding, 0.0).sum() / (active * VOCABULARY))


torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY, bias=False))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tokens = torch.randint(1, VOCABULARY, (64, 9))
for step in range(1, 61):
    model.train()
    rows = tokens[torch.randint(0, 48, (2,))]
    optimizer.zero_grad()
    loss = smoothed(model(rows[:, :-1]), rows[:, 1:])
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        narrow = copy.deepcopy(model).half().eval()
        with torch.no_grad():
            losses = [smoothed(narrow(rows[:, :-1]), rows[:, 1:]).item() for rows in tokens[48:].split(2)]
        print(f"step {step} loss {loss.item():.3f} eval_loss {sum(losses) / len(losses):.3f}")
