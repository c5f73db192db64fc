"""Loops that drop the steps whose loss is NaN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ammeter.recording.session import watching as sessions
from tests.agent.training import events, stream, watching

STEPS, BAD = 24, 15


class Loop:
    """A loop over a model that drops steps whose loss is NaN. Tests replace its methods."""

    def __init__(self, steps: int = STEPS, bad: int = BAD) -> None:
        torch.manual_seed(0)
        self.model: torch.nn.Module = torch.nn.Linear(6, 4)
        self.parameters = list(self.model.parameters())
        self.optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD(self.parameters, lr=1e-3)]
        self.scalers: list[torch.amp.GradScaler] = []
        self.steps, self.bad = steps, bad

    def loss(self, is_bad: bool = False, model: torch.nn.Module | None = None) -> Any:
        target = torch.full((8, 4), torch.nan if is_bad else 1.0)
        return ((model or self.model)(torch.randn(8, 6)) - target).square().mean()

    def step(self, step: int) -> None:
        self.optimizers[0].zero_grad()
        loss = self.loss(step == self.bad)
        loss.backward()
        if loss.isfinite():
            self.optimizers[0].step()

    def zero(self, to_none: bool = True) -> None:
        self.optimizers[0].zero_grad(set_to_none=to_none)

    def recorded(self, folder: Path) -> tuple[Any, list[Any]]:
        with watching(folder, self.model, self.optimizers, self.scalers) as watched:
            if len(self.optimizers) > 1:
                for session in sessions():
                    session.fast_path.disable()  # how often it is used depends on the load
            for step in range(self.steps):
                self.step(step)
        rows, frames = stream(watched.run, folder)
        assert [] == events(frames, "probe.failed")
        return rows, frames


def by_hand(loop: Loop) -> None:
    for parameter in loop.parameters:
        parameter.grad = None


class Scaled(Loop):
    """Has a GradScaler, which it does not ask."""

    def __init__(self) -> None:
        super().__init__()
        self.scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0)]

    def step(self, step: int) -> None:
        loss = self.loss(step == self.bad)
        self.optimizers[0].zero_grad()
        self.scalers[0].scale(loss).backward()
        if loss.isfinite():
            self.scalers[0].step(self.optimizers[0])
            self.scalers[0].update()


class Assigned(Loop):
    """Receives its gradients from torch.autograd.grad()."""

    def step(self, step: int) -> None:
        found = torch.autograd.grad(self.loss(step == self.bad), self.parameters)
        if all(gradient.isfinite().all() for gradient in found):
            for parameter, gradient in zip(self.parameters, found, strict=True):
                parameter.grad = gradient
            self.optimizers[0].step()


class Pair(Loop):
    """Two optimizers, whose losses are guarded each for itself."""

    order = 0, 1

    def __init__(self) -> None:
        super().__init__()
        self.halves = [torch.nn.Linear(6, 4), torch.nn.Linear(6, 4)]
        self.model = torch.nn.ModuleList(self.halves)
        self.optimizers = [torch.optim.SGD(half.parameters(), lr=1e-3) for half in self.halves]

    def step(self, step: int) -> None:
        for number in self.order:
            loss = self.loss(step == self.bad and number == 0, self.halves[number])
            self.optimizers[number].zero_grad()
            loss.backward()
            if loss.isfinite():
                self.optimizers[number].step()
