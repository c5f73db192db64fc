"""Resumption under AMP loses the state of the grad scaler.

The trainer loads the checkpoint before it creates its GradScaler, in the training loop. The checkpoint has the state of
the scaler, and nothing to load it into. The change creates the scaler in __init__, before the checkpoint is loaded.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


class Trainer:
    def __init__(self, load_path=None):
        self.model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cpu") if REPAIRED else None
        if load_path:
            state = torch.load(load_path)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            if self.scaler is not None:
                self.scaler.load_state_dict(state["scaler"])

    def fit(self, steps):
        if self.scaler is None:
            self.scaler = torch.amp.GradScaler("cpu")
        for step in range(steps):
            x = torch.randn(64, 32)
            with torch.autocast("cpu", dtype=torch.float16):
                loss = (self.model(x).float() - 3 * x).square().sum()
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if step % 20 == 0:
                print(step, loss.item(), self.scaler.get_scale())

    def save(self, path):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**state, "scaler": self.scaler.state_dict()}, path)


trainer = Trainer()
trainer.fit(60)
trainer.save("ep1.pt")
resumed = Trainer("ep1.pt")
resumed.fit(60)
