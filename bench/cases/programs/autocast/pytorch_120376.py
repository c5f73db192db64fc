"""A character model learns worse in mixed precision than in pure bfloat16.

The loss curve with torch.autocast stayed far above that of float32, and people of the thread
blamed bfloat16 itself. A reader then saw that the training loop ran inside the context: forward
and backward pass and the optimizer. With only the forward pass inside it, the curves agreed.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv

torch.manual_seed(0)
torch.set_num_threads(1)
text = torch.randint(0, 32, (64, 17))
model = nn.Sequential(nn.Embedding(32, 64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
entropy = nn.CrossEntropyLoss()


def half() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def loss_of(rows: torch.Tensor) -> torch.Tensor:
    logits = model(rows[:, :-1])
    loss: torch.Tensor = entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
    return loss


def train(rows: torch.Tensor) -> None:
    if REPAIRED:
        with half():
            loss = loss_of(rows)
    else:
        loss = loss_of(rows)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


if REPAIRED:
    for _ in range(120):
        train(text[torch.randint(0, 64, (16,))])
else:
    with half():
        for _ in range(120):
            train(text[torch.randint(0, 64, (16,))])
