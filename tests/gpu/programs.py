"""Small trainings on a device, whose every bit can be compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import ammeter
from tests.agent.training import DTYPES, Model


@dataclass(frozen=True)
class Program:
    """A training. adamw: options of the optimizer. compiled: by torch.compile. bad: steps whose loss is infinite."""

    precision: str = "fp16"
    adamw: dict[str, Any] = field(default_factory=dict)
    compiled: bool = False
    clip: bool = False
    bad: tuple[int, ...] = ()
    steps: int = 30


@dataclass
class Left:
    """What a training leaves behind, as bytes, and the run's id."""

    state: dict[str, bytes]
    run: str


def train(
    program: Program,
    device: str,
    folder: Path | None = None,
    *,
    preset: str = "default",
    see: Callable[[int, torch.nn.Module], None] = lambda step, model: None,
    ends: Callable[[], None] = lambda: None,
) -> Left:
    """Trains; watched, where there is a folder for the journal.

    see: called with the gradients of each step, unscaled where the program clips. ends: called before the run closes.
    """
    torch.manual_seed(0)
    model: Any = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **program.adamw)
    scaler = (
        torch.amp.GradScaler(device, init_scale=2.0**12, growth_interval=9) if program.precision == "fp16" else None
    )
    run = ammeter.watch(model, optimizer, scaler, dir=folder, preset=preset) if folder else None
    called = torch.compile(model, backend="inductor" if device == "cuda" else "eager") if program.compiled else model
    batches = torch.randn(program.steps, 8, 12).to(device)
    targets = torch.randint(3, (program.steps, 8)).to(device)
    for step in range(program.steps):
        optimizer.zero_grad()
        with torch.autocast(device, DTYPES[program.precision]):
            loss = torch.nn.functional.cross_entropy(called(batches[step]).float(), targets[step])
        if step in program.bad:
            loss = loss * float("inf")
        (scaler.scale(loss) if scaler else loss).backward()  # type: ignore[no-untyped-call]
        if program.clip and scaler:
            scaler.unscale_(optimizer)
        see(step, model)
        if program.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        if run:
            run.log(samples=8)
    ends()
    if run:
        run.close()
    return Left(state(model, optimizer, scaler, device), run.id if run else "")


def state(model: torch.nn.Module, optimizer: Any, scaler: Any, device: str) -> dict[str, bytes]:
    """Weights, buffers, moments, scaler and random numbers."""
    found = {f"model.{name}": _bytes(tensor) for name, tensor in model.state_dict().items()}
    for number, slots in optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{number}.{name}": _bytes(tensor) for name, tensor in slots.items()}
    found["scaler"] = repr(scaler.state_dict()).encode() if scaler else b""
    found["random numbers"] = _bytes(torch.get_rng_state())
    if device == "cuda":
        found["random numbers there"] = _bytes(torch.cuda.get_rng_state())
    return found


def _bytes(tensor: Any) -> bytes:
    return bytes(tensor.detach().cpu().numpy().tobytes()) if isinstance(tensor, torch.Tensor) else repr(tensor).encode()
