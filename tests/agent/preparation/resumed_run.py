"""A run that is resumed from a saved file, before watch() or without some of its parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ammeter.preparation.observer import observer
from tests.agent.training import Seen, watching


class Parts:
    """What a program trains, and one step of it."""

    def __init__(self, *, momentum: float = 0.9, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(6, 5)
        self.optimizer = torch.optim.SGD(self.model.parameters(), **{"lr": 0.01, "momentum": momentum, **options})
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)

    def step(self) -> None:
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = self.model(torch.randn(3, 6)).float().square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()

    def watched(self, folder: Path, steps: int = 3) -> Seen:
        """Trains a few watched steps."""
        with watching(folder, self.model, self.optimizer, self.scaler) as seen:
            for _ in range(steps):
                self.step()
        return seen

    def state(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in vars(self).items()}

    def load(self, state: dict[str, Any], *names: str) -> None:
        for name in names:
            vars(self)[name].load_state_dict(state[name])


ALL = ("model", "optimizer", "scaler", "scheduler")


def saved(path: Path, **options: Any) -> Path:
    """A checkpoint of a run that is not watched, in a private folder."""
    parts = Parts(**options)
    for _ in range(5):
        parts.step()
    path.mkdir(mode=0o700, exist_ok=True)
    torch.save(parts.state(), path / "run.pt")
    observer.take()
    return path / "run.pt"


def resumed(path: Path, folder: Path, *names: str, steps: int = 3, **options: Any) -> Seen:
    """A program that loads these parts before it is watched."""
    parts, checkpoint = Parts(**options), torch.load(path, weights_only=True)
    parts.load(checkpoint, *names)
    seen = parts.watched(folder, steps)
    assert checkpoint  # which was in memory all the time
    return seen
