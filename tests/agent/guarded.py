"""A small network whose gradients, weights and activations can be made to overflow, trained with guards or without."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import ammeter
from tests.agent.training import events, stream


class Net(torch.nn.Module):
    """Two layers with a gain between them. In float16 a gain of 2^17 takes the activations past 65504."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 16)
        self.loud = Loud()
        self.last = torch.nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.loud(torch.tanh(self.first(x))))
        return found


class Loud(torch.nn.Module):
    """Multiplied by the gain and divided by it again: nothing, where there is room for it."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = 1.0
        self.mix = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.mix(x) * self.gain / self.gain
        return found


@dataclass
class Outcome:
    """state: all bits of weights, optimizer, scaler and random numbers. scales: after each step."""

    run: str
    state: list[bytes]
    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    raised: BaseException | None = None
    acted: list[dict[str, Any]] = field(default_factory=list)

    def actions(self, guard: str = "") -> list[tuple[str, int]]:
        """(action, step) of what guards did."""
        return [(action["action"], action["step"]) for action in self.acted if guard in ("", action["guard"])]


def train(
    folder: Path | None,
    guards: Sequence[Any] = (),
    *,
    steps: int = 30,
    scaler: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.float16,
    with_scaler: bool = True,
    before: Callable[[int, Net, Any, Any], None] = lambda step, net, optimizer, scaler: None,
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda weights: torch.optim.SGD(weights, lr=1e-2, momentum=0.9),
    clip: float | None = None,
    **options: Any,
) -> Outcome:
    """folder None: not watched. before: called as each step begins, to break something."""
    torch.manual_seed(4)
    net = Net()
    stepper = optimizer(net.parameters())
    scales = torch.amp.GradScaler("cpu", **(scaler or {"init_scale": 1024.0})) if with_scaler else None
    run = ammeter.watch(net, stepper, scales, dir=folder, guards=guards, **options) if folder else ammeter.Run()
    found = Outcome(run.id, [])
    try:
        for step in range(steps):
            before(step, net, stepper, scales)
            found.losses.append(_step(run, net, stepper, scales, dtype, clip))
            found.scales.append(scales.get_scale() if scales else 1.0)
    except ammeter.Stopped as stopped:
        found.raised = stopped
    finally:
        run.close()
    found.state = _bits(net, stepper, scales)
    if folder:
        found.acted = [event.data for event in events(stream(run.id, folder)[1], "guard.acted")]
    return found


def _step(run: ammeter.Run, net: Net, optimizer: Any, scaler: Any, dtype: torch.dtype, clip: float | None) -> float:
    x = torch.randn(8, 6)
    optimizer.zero_grad()
    with run.autocast("cpu", dtype):
        loss = (net(x).float() - x.sum(1, keepdim=True).sin()).square().mean()
    (scaler.scale(loss) if scaler else loss).backward()
    if clip is not None:
        if scaler:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    return float(loss.detach())


def _bits(net: Net, optimizer: Any, scaler: Any) -> list[bytes]:
    tensors = [*net.state_dict().values(), torch.get_rng_state()]
    for slots in optimizer.state_dict()["state"].values():
        tensors += [tensor for tensor in slots.values() if isinstance(tensor, torch.Tensor)]
    return [*(tensor.detach().numpy().tobytes() for tensor in tensors), repr(scaler and scaler.state_dict()).encode()]


def poison(at: int) -> Callable[[int, Net, Any, Any], None]:
    """One weight becomes NaN as this step begins."""

    def before(step: int, net: Net, optimizer: Any, scaler: Any) -> None:
        if step == at:
            with torch.no_grad():
                net.loud.mix.weight[2, 3] = math.nan

    return before
