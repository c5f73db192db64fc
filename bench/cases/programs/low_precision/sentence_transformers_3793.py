"""Index put requires the source and destination dtypes match, got Float and BFloat16.

A reranker in bfloat16 crashes in its learning-to-rank losses: the matrix of logits is made with torch.full(), float32
by default, and the model's logits are written into it. Found: cast the logits to float32 first, which is also better
for the softmax of these losses.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


def list_net_loss(logits, labels, documents):
    if REPAIRED:
        logits = logits.float()
    rows = torch.repeat_interleave(torch.arange(len(documents)), documents)
    columns = torch.cat([torch.arange(int(count)) for count in documents])
    logits_matrix = torch.full((len(documents), int(documents.max())), -1e16)
    logits_matrix[rows, columns] = logits
    labels_matrix = torch.full_like(logits_matrix, float("-inf"))
    labels_matrix[rows, columns] = labels
    return nn.functional.cross_entropy(logits_matrix, labels_matrix.softmax(dim=1))


encoder = nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3)
for step in range(60):
    documents = torch.randint(2, 6, (8,))
    pairs = torch.randn(int(documents.sum()), 48)
    labels = pairs[:, :4].sum(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = encoder(pairs).squeeze(-1)
    loss = list_net_loss(logits, labels, documents)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0:
        print(step, loss.item())
