"""A small real training loop for tests: any precision, optimizer, clipping and accumulation, and its journal."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ammeter
from ammeter import journal
from ammeter.verdicts.framework.finding import Finding
from ammeter.wire.columns import ABSENT, View, join, view
from ammeter.wire.frames import Event, Hello, Schema, Steps
from tests.agent import stream_builder, stream_judgement

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass
class Recipe:
    """What a run does. spoil(step, loss) may break the loss; hook(step, model) may break the model."""

    precision: str = "fp16"
    optimizer: str = "adamw"
    clip: float | None = None
    accumulate: int = 1
    steps: int = 50
    seed: int = 0
    scaler: dict[str, Any] = field(default_factory=lambda: {"init_scale": 2.0**14, "growth_interval": 9})
    spoil: Callable[[int, torch.Tensor], torch.Tensor] = lambda step, loss: loss
    hook: Callable[[int, torch.nn.Module], None] = lambda step, model: None


class Model(torch.nn.Module):
    """In-place ReLU, in-place add, BatchNorm, Dropout: what hooks of the careless kind break."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(12, 24)
        self.norm = torch.nn.BatchNorm1d(24)
        self.relu = torch.nn.ReLU(inplace=True)
        self.middle = torch.nn.Linear(24, 24)
        self.drop = torch.nn.Dropout(0.1)
        self.last = torch.nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.norm(self.first(x)))
        y = self.middle(x)
        y += x
        logits: torch.Tensor = self.last(self.drop(y))
        return logits


@dataclass
class Outcome:
    """Everything that training leaves behind, as bytes that can be compared, and the run's id."""

    state: dict[str, Any]
    run: str
    losses: list[float]
    norms: list[float]


def train(recipe: Recipe, *, watched: bool, **options: Any) -> Outcome:
    """Trains as the recipe says and returns what is left."""
    torch.manual_seed(recipe.seed)
    model = Model()
    kind: Any = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[recipe.optimizer]
    optimizer = kind(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", **recipe.scaler) if recipe.precision == "fp16" else None
    run = ammeter.watch(model, optimizer, scaler, **options) if watched else None
    losses, norms = [], []
    for step in range(recipe.steps):
        optimizer.zero_grad()
        recipe.hook(step, model)
        for _ in range(recipe.accumulate):
            loss = recipe.spoil(step, _loss(model, recipe)) / recipe.accumulate
            (scaler.scale(loss) if scaler else loss).backward()  # type: ignore[no-untyped-call]
        norms.append(_update(model, optimizer, scaler, recipe))
        losses.append(float(loss.detach()))
        if run:
            run.log(samples=8)
    if run:
        run.close()
    return Outcome(_everything(model, optimizer, scaler), run.id if run else "", losses, norms)


def stream(run: str, folder: Path) -> tuple[View, list[Any]]:
    """(rows, all frames) of the only stream of a run."""
    (only,) = journal.streams(folder / run)
    frames = [entry.frame for entry in journal.read(only)]
    schema = [frame for frame in frames if isinstance(frame, Hello)][-1].schema
    rows, present = [], schema
    for frame in frames:
        if isinstance(frame, Hello):
            present = frame.schema
        elif isinstance(frame, Steps):
            rows.append(_in_columns_of(schema, view(present, [frame])))
    return join(schema, rows), frames


def events(frames: list[Any], name: str) -> list[Event]:
    return [frame for frame in frames if isinstance(frame, Event) and frame.name == name]


def _in_columns_of(schema: Schema, row: View) -> View:
    """The row with its columns where a later schema of the same stream has them."""
    values = np.full((schema.width, 1), ABSENT, np.float32)
    for position, name in enumerate(schema.scalars):
        values[position] = row.scalar(name)
    for stat in row.schema.stats:
        values[schema.span(stat)][: len(row.schema.tensors)] = row.stat(stat)
    return View(schema, row.steps, row.times, values)


def _loss(model: Model, recipe: Recipe) -> torch.Tensor:
    x, y = torch.randn(8, 12), torch.randint(3, (8,))
    dtype = DTYPES.get(recipe.precision)
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        return torch.nn.functional.cross_entropy(model(x).float(), y)


def _update(model: Model, optimizer: Any, scaler: Any, recipe: Recipe) -> float:
    norm = float("nan")
    if recipe.clip is not None:
        if scaler:
            scaler.unscale_(optimizer)
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip))
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    return norm


def _everything(model: Model, optimizer: Any, scaler: Any) -> dict[str, Any]:
    state: dict[str, Any] = {f"model.{name}": _bytes(tensor) for name, tensor in model.state_dict().items()}
    for number, slots in optimizer.state_dict()["state"].items():
        state |= {f"optimizer.{number}.{name}": _bytes(tensor) for name, tensor in slots.items()}
    state["scaler"] = repr(scaler.state_dict()) if scaler else ""
    state["rng"] = _bytes(torch.get_rng_state())
    return state


def _bytes(tensor: Any) -> bytes:
    return (
        bytes(np.ascontiguousarray(tensor.detach().numpy()).tobytes())
        if isinstance(tensor, torch.Tensor)
        else repr(tensor).encode()
    )


@dataclass
class Seen:
    """What a run has written, to be asked once it is closed."""

    run: str
    folder: Path

    def events(self, name: str) -> list[Event]:
        return events(stream(self.run, self.folder)[1], name)

    def findings(self) -> dict[str, Finding]:
        """What the verdicts conclude from it, by id."""
        written = stream_builder.Stream()
        written.frames = stream(self.run, self.folder)[1]
        return stream_judgement.findings(written)

    def usage(self) -> dict[str, dict[str, Any]]:
        """Every mistake that was told: name without 'usage.' -> data of the first time."""
        _, frames = stream(self.run, self.folder)
        assert [] == events(frames, "probe.failed")
        emitted = [frame for frame in frames if isinstance(frame, Event) and frame.name.startswith("usage.")]
        return {frame.name.removeprefix("usage."): frame.data for frame in reversed(emitted)}


@contextmanager
def watching(folder: Path, model: Any, optimizer: Any, scaler: Any = None, **options: Any) -> Iterator[Seen]:
    """A program of the test's own, watched as long as the block lasts."""
    run = ammeter.watch(model, optimizer, scaler, dir=folder, **options)
    try:
        yield Seen(run.id, folder)
    finally:
        run.close()


def line_of(function: Callable[..., Any], text: str) -> str:
    """'file.py:12' of the only line of a function that holds this text."""
    lines, first = inspect.getsourcelines(function)
    (found,) = [first + at for at, line in enumerate(lines) if text in line and "line_of" not in line]
    return f"{Path(inspect.getfile(function)).name}:{found}"
