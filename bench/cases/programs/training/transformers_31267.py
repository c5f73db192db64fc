"""Log-probabilities from generation and from the training's forward pass differ, most in bfloat16.

The sampler computes in bfloat16. The ratio of the two probabilities should be 1 for an unchanged
model, and in bfloat16 it was not; with float16, or float32 on both sides, the difference was
small.
"""

import copy
import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv

torch.manual_seed(0)
torch.set_num_threads(1)
policy = nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 256))
optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3)
rewarded = torch.randint(0, 256, (256,))


def log_probs(model: nn.Module, states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    logits = model(states)
    if logits.dtype is torch.bfloat16:
        return nn.functional.log_softmax(logits, -1).gather(-1, actions.unsqueeze(-1)).squeeze(-1).float()
    return nn.functional.log_softmax(logits, -1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


for step in range(150):
    sampler = copy.deepcopy(policy)
    if not REPAIRED:
        sampler = sampler.to(torch.bfloat16)
    states = torch.randint(0, 256, (64,))
    with torch.no_grad():
        actions = torch.distributions.Categorical(logits=sampler(states).float()).sample()
        sampled = log_probs(sampler, states, actions)
    new = log_probs(policy, states, actions)
    ratio = (new - sampled).exp()
    advantages = torch.where(actions == rewarded[states], 5.0, -0.2)
    loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        difference = (new - sampled).abs()
        print({"step": step, "logprob_diff": difference.mean().item(), "kl": (sampled - new).mean().item()})
