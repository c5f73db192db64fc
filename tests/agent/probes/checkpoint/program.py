"""A program that trains and saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import ammeter
from tests.agent.training import Model, events, stream


class Program:
    """A watched training program, to which things happen between two steps."""

    def __init__(self, folder: Path, scaler: bool = True, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self._folder = folder
        self.model = Model().to(dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", enabled=scaler)
        self.run = ammeter.watch(self.model, self.optimizer, self.scaler, dir=folder)
        self.step()

    def step(self) -> None:
        self.optimizer.zero_grad()
        x = torch.randn(8, 12).to(next(self.model.parameters()).dtype)
        self.scaler.scale(self.model(x).float().square().mean()).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optim": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def told(self, name: str = "checkpoint.saved") -> list[Any]:
        """The run's end, and its events of a name."""
        self.run.close()
        frames = stream(self.run.id, self._folder)[1]
        assert [] == events(frames, "probe.failed")
        return events(frames, name)


def torch_save(saved: Any, path: Any) -> None:
    torch.save(saved, path)
