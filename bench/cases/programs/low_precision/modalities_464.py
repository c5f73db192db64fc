"""The causal language model's cross entropy is computed in bfloat16.

The weights are cast to bfloat16 by the sharding library and there is no autocast context, so nothing promotes the
logits before the loss. The log-softmax and the loss have 8 bits: at a loss of 36 they move in steps of 0.25. Found:
cast the logits to float32 before the cross entropy, as others do.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


class CLMCrossEntropyLoss:
    def __init__(self):
        self.loss_fun = nn.CrossEntropyLoss(reduction="mean")

    def __call__(self, logits, labels):
        shift_logits, shift_labels = logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
        if REPAIRED:
            shift_logits = shift_logits.float()
        return self.loss_fun(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1))


class Sharded(nn.Module):
    """Computes with bfloat16 copies of float32 weights, as MixedPrecisionPolicy(param_dtype=bfloat16) does."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        copies = {name: parameter.bfloat16() for name, parameter in self.module.named_parameters()}
        return torch.func.functional_call(self.module, copies, (x,))


model = Sharded(nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 256)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = CLMCrossEntropyLoss()
for step in range(100):
    tokens = (torch.randint(256, (8, 1)) + 7 * torch.arange(32)) % 256
    loss = criterion(model(tokens), tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0:
        print(step, loss.item())
