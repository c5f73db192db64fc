"""Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.

The third step of RLHF fails: every step of the engine overflows and halves the loss scale until it is 1. A scale of 1
scales nothing, so it is not the scale that overflows: the float16 forward pass itself does, here in the reward
model, whose activations exceed 65504. Answers of the threads about this exception: bfloat16 instead of float16.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


class Engine:
    def __init__(self, model, optimizer, dtype):
        self.model, self.optimizer, self.dtype = model, optimizer, dtype
        self.cur_scale, self.min_loss_scale = (2.0**16, 1.0) if dtype == torch.float16 else (1.0, 1.0)

    def backward(self, loss):
        (loss.float() * self.cur_scale).backward()

    def step(self):
        grads = [parameter.grad for parameter in self.model.parameters()]
        if not all(torch.isfinite(grad).all() for grad in grads):
            if self.cur_scale == self.min_loss_scale:
                raise Exception("Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.")
            print(f"OVERFLOW! Skipping step. Attempted loss scale: {self.cur_scale}, reducing to {self.cur_scale / 2}")
            self.cur_scale = max(self.cur_scale / 2, self.min_loss_scale)
        else:
            for grad in grads:
                grad.div_(self.cur_scale)
            self.optimizer.step()
        self.optimizer.zero_grad()


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.project_in = nn.Linear(64, 256)
        self.fc2 = nn.Linear(256, 256)
        self.norm = nn.LayerNorm(256)
        self.value = nn.Linear(256, 1)

    def forward(self, hidden):
        return self.value(self.norm(self.fc2(self.project_in(hidden).relu())))


critic = Critic()
with torch.no_grad():
    critic.fc2.weight.mul_(40)  # what a pretrained reward model brings with it
engine = Engine(critic, torch.optim.AdamW(critic.parameters(), lr=1e-4), torch.bfloat16 if REPAIRED else torch.float16)
for step in range(100):
    hidden, rewards = torch.randn(32, 64), torch.randn(32)
    if step >= 40:
        hidden = hidden * 5000  # hidden states of the actor grow
    with torch.autocast("cpu", dtype=engine.dtype):
        values = critic(hidden).squeeze(-1)
        loss = 0.5 * (values.float() - rewards).square().mean()
    engine.backward(loss)
    engine.step()
    if step % 20 == 0:
        print(step, loss.item(), engine.cur_scale)
