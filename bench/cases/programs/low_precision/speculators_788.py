"""Divergence losses are computed in bfloat16.

A draft model learns the distribution of a target model by a KL divergence. The softmax is taken in the dtype of the
logits, bfloat16, without autocast. The gradient is p_draft - p_target, which cancels when the two agree: its error is
3 % at the beginning and 20 % at the end. Found: compute the softmax of these losses in float32.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


def kl_div_loss(logits, targets):
    if REPAIRED:
        logits, targets = logits.float(), targets.float()
    logits, targets = torch.log_softmax(logits, dim=-1), torch.softmax(targets, dim=-1)
    return nn.functional.kl_div(logits, targets, reduction="none", log_target=False).sum(-1).mean()


class Draft(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.norm, self.lm_head = nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 512, bias=False)

    def forward(self, hidden):
        weights = {name: parameter.bfloat16() for name, parameter in self.named_parameters()}
        hidden = nn.functional.linear(hidden.bfloat16(), weights["fc.weight"], weights["fc.bias"])
        hidden = nn.functional.layer_norm(hidden, (64,), weights["norm.weight"], weights["norm.bias"])
        return nn.functional.linear(hidden, weights["lm_head.weight"])


verifier = nn.Linear(64, 512, bias=False).requires_grad_(False)
draft = Draft()
optimizer = torch.optim.AdamW(draft.parameters(), lr=2e-3)
for step in range(120):
    hidden = torch.randn(64, 64)
    loss = kl_div_loss(draft(hidden), (4 * verifier(hidden)).bfloat16())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, loss.item())
