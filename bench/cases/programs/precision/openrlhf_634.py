"""PPO with a bfloat16 actor becomes unstable in its KL divergence after an update of transformers.

From version 4.46 on, the model returns its logits in its own dtype unless it computes the loss
itself. The log-probabilities, the ratio and the KL were then computed from bfloat16 logits in
bfloat16. The fix casts the logits to float32 first.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv


def log_probs(logits: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    if REPAIRED:
        logits = logits.float()
    return nn.functional.log_softmax(logits, -1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


torch.manual_seed(0)
torch.set_num_threads(1)
actor = nn.Sequential(nn.Embedding(128, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 128))
optimizer = torch.optim.AdamW(actor.parameters(), lr=5e-4)
prompts = torch.randint(0, 128, (64, 16))
rewarded = torch.randint(0, 128, (128,))


def half() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


for _ in range(20):
    states = prompts[torch.randint(0, 64, (8,))]
    with torch.no_grad(), half():
        old_logits = actor(states)
        actions = torch.distributions.Categorical(logits=old_logits.float()).sample()
        old = log_probs(old_logits, actions)
    advantages = torch.where(actions == rewarded[states], 1.0, -0.1)
    for _ in range(4):
        with half():
            new = log_probs(actor(states), actions)
        ratio = (new - old).exp()
        surrogate = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        divergence = (old - new).exp() - 1 - (old - new)
        loss = (0.1 * divergence - surrogate).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
