"""A small model and the loops that train it, bare and watched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import ammeter
from ammeter.wire.columns import View
from tests.agent.training import events, stream


class Trained:
    """What a loop leaves: its weights, and what the journal says when it was watched."""

    def __init__(self, model: torch.nn.Module, run: ammeter.Run, folder: Path) -> None:
        self.weights = [parameter.tolist() for parameter in model.parameters()]
        self.id, self._folder = run.id, folder

    def rows(self) -> View:
        rows, frames = stream(self.id, self._folder)
        assert [] == events(frames, "probe.failed")
        return rows


Loop = Callable[[torch.nn.Module, Any, Any], None]


def train(
    folder: Path,
    loop: Loop,
    *,
    watched: bool = True,
    optimizer: Callable[..., Any] = lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    scaler: Callable[[], Any] = lambda: torch.amp.GradScaler("cpu", init_scale=64.0),
) -> Trained:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
    stepper, scaling = optimizer(model.parameters()), scaler()
    run = ammeter.watch(model, stepper, scaling, dir=folder) if watched else ammeter.Run()
    try:
        loop(model, stepper, scaling)
    finally:
        run.close()
    return Trained(model, run, folder)


def amp_step(model: torch.nn.Module, optimizer: Any, scaler: Any, spoil: float = 1.0) -> None:
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(3, 4)).square().mean() * spoil).backward()
    scaler.step(optimizer)
    scaler.update()


def eight_steps(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
    """Eight steps, of which the third and the fourth overflow."""
    for index in range(8):
        amp_step(model, optimizer, scaler, float("inf") if index in (2, 3) else 1.0)


def same_rows(folder: Path, loop: Loop, **parts: Any) -> View:
    """The rows of a watched loop that left the same bits as the bare one."""
    bare, watched = train(folder, loop, watched=False, **parts), train(folder, loop, **parts)
    assert bare.weights == watched.weights
    return watched.rows()
