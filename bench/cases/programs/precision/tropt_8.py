"""A soft prompt is infinite after its first step, and every later loss is NaN.

The prompt inherits the dtype of the embeddings of a float16 model. Adam keeps its state in that
dtype, where its eps of 1e-8 and the square of a small gradient are zero. A float32 copy of the
prompt, cast for the forward pass, fixed it.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv

torch.manual_seed(0)
torch.set_num_threads(1)
embedding = nn.Embedding(64, 32).half().requires_grad_(False)
encoder = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32)).half().requires_grad_(False)
goal = torch.randn(32).half()
prompt = embedding(torch.randint(0, 64, (8,))).detach().clone()
if REPAIRED:
    prompt = prompt.float()
prompt.requires_grad_()
optimizer = torch.optim.Adam([prompt], lr=1e-2)
for _ in range(40):
    vector = encoder(prompt.half()).mean(0)
    loss = 1 - nn.functional.cosine_similarity(vector.float(), goal.float(), dim=0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
