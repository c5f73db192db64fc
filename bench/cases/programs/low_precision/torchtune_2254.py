"""Very bad convergence with bf16.

With dtype=bf16 the fine-tuning recipe loads the whole model in bfloat16 and trains these weights with AdamW at 2e-5.
The loss stays far above that of float32. An update of 2e-5 is below the distance of two bfloat16 numbers for most
weights. float32 weights, with bfloat16 for the computation, converge as expected.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


class Llama(nn.Module):
    def __init__(self, width=64, words=128):
        super().__init__()
        self.tok_embeddings = nn.Embedding(words, width)
        self.up, self.gate, self.down = nn.Linear(width, 192), nn.Linear(width, 192), nn.Linear(192, width)
        self.norm, self.output = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        h = h + self.down(nn.functional.silu(self.gate(h)) * self.up(h))
        return self.output(self.norm(h))


model = Llama().to(torch.float32 if REPAIRED else torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
for step in range(150):
    tokens = (torch.randint(128, (4, 1)) + torch.arange(33)) % 128
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=REPAIRED):
        logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if step % 25 == 0:
        print(step, loss.item())
