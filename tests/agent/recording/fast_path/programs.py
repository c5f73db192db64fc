"""Programs with short steps, and the values of their rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import ammeter
from tests.agent.training import events, stream

FULL_STEPS = 6
"""First steps of a run here, which do not use the fast path."""

BAD = 30
"""The step with a fault."""


def bits(rows: Any, name: str) -> list[int]:
    """An absent value is a NaN with reserved bits, which a comparison of numbers does not show."""
    bits: list[int] = np.ascontiguousarray(rows.scalar(name), np.float32).view(np.uint32).tolist()
    return bits


def measured(rows: Any, name: str) -> list[float]:
    return [float(number) for number in rows.scalar(name)]


class Program:
    """A training loop on a small model, whose steps a test composes."""

    def __init__(self, folder: Path, *, scaler: bool = False, **options: Any) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.model: Any = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10**6) if scaler else None
        self.run = ammeter.watch(self.model, self.optimizer, self.scaler, dir=folder, **options)
        assert self.run._session is not None
        self.session = self.run._session

    def step(self, x: torch.Tensor | None = None, factor: float = 1.0) -> None:
        self.optimizer.zero_grad()
        self.backward(x, factor)
        self.update()

    def loss(self, x: torch.Tensor | None = None) -> torch.Tensor:
        x = torch.ones(4, 8) if x is None else x
        with torch.autocast("cpu", torch.float16, enabled=self.scaler is not None):
            loss: torch.Tensor = self.model(x).float().mean()
        return loss

    def backward(self, x: torch.Tensor | None = None, factor: float = 1.0) -> None:
        loss = self.loss(x) * factor
        (self.scaler.scale(loss) if self.scaler else loss).backward()  # type: ignore[no-untyped-call]

    def update(self) -> None:
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()

    def read(self) -> tuple[Any, list[Any]]:
        self.run.close()
        rows, frames = stream(self.run.id, self.folder)
        assert list(range(len(rows.steps))) == rows.steps.tolist()
        assert [] == events(frames, "probe.failed")
        return rows, frames
