"""Parts of the healthy programs: registry, precision, training loop, small networks and data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, AdamW, Optimizer

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
WIDTH, CLASSES = 16, 8
STEPS = 150

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Context:
    """The arguments of a program: a watch function, the precision, the seed, and a folder for its files."""

    watch: Callable[..., Any]
    precision: str
    seed: int
    folder: Path

    def autocast(self) -> torch.autocast:
        return torch.autocast("cpu", DTYPES[self.precision], enabled=self.precision != "fp32")

    def scaler(self, scale: float = 2.0**16, **options: Any) -> GradScaler | None:
        """Only float16 needs one."""
        return GradScaler("cpu", init_scale=scale, **options) if self.precision == "fp16" else None


@dataclass(frozen=True)
class Program:
    """A healthy training. precisions: the precisions in which it runs."""

    name: str
    precisions: tuple[str, ...]
    trains: Callable[[Context], None]

    def run(self, watch: Callable[..., Any], precision: str, seed: int, folder: Path) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.trains(Context(watch, precision, seed, folder))


PROGRAMS: dict[str, Program] = {}


def healthy(*precisions: str) -> Callable[[Callable[[Context], None]], Callable[[Context], None]]:
    """Registers a function as a program; the program's name is the function's name with spaces."""

    def listed(trains: Callable[[Context], None]) -> Callable[[Context], None]:
        name = trains.__name__.replace("_", " ")
        PROGRAMS[name] = Program(name, precisions or ("fp16", "bf16", "fp32"), trains)
        return trains

    return listed


@dataclass
class Loop:
    """An ordinary training loop. batch: returns inputs and targets of a micro-batch by its number."""

    context: Context
    model: nn.Module
    optimizer: Optimizer
    scaler: GradScaler | None
    batch: Callable[[int], Batch]
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    accumulate: int = 1
    clip: float = 1.0
    run: Any = None

    def watched(self, **options: Any) -> Loop:
        self.run = self.context.watch(self.model, self.optimizer, self.scaler, **options)
        return self

    def step(self, number: int) -> bool:
        """Trains one step. Returns whether it was applied."""
        total = torch.zeros(())
        for part in range(self.accumulate):
            inputs, targets = self.batch(number * self.accumulate + part)
            with self.context.autocast():
                output = self.model(inputs)
            loss = self.loss(output.float(), targets) / self.accumulate
            (self.scaler.scale(loss) if self.scaler else loss).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        applied = self._apply()
        self.optimizer.zero_grad()
        self.run.log(loss=total)
        return applied

    def steps(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.step(number)

    def _apply(self) -> bool:
        if self.scaler is None:
            clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            return True
        before = self.scaler.get_scale()
        self.scaler.unscale_(self.optimizer)
        clip_grad_norm_(self.model.parameters(), self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.scaler.get_scale() >= before


def watched_loop(
    context: Context,
    model: nn.Module,
    *,
    batch: Any = None,
    optimizer: Any = AdamW,
    scale: float = 2.0**12,
    **scaler: Any,
) -> Loop:
    """A watched training loop of this model."""
    return Loop(*parts(context, model, batch=batch, optimizer=optimizer, scale=scale, **scaler)).watched()


def parts(
    context: Context,
    model: nn.Module,
    *,
    batch: Any = None,
    optimizer: Any = AdamW,
    scale: float = 2.0**12,
    **scaler: Any,
) -> tuple[Any, ...]:
    if isinstance(optimizer, type):
        momentum = {"lr": 0.05, "momentum": 0.9} if optimizer is SGD else {"lr": 1e-2}
        optimizer = optimizer(model.parameters(), **momentum)
    return context, model, optimizer, context.scaler(scale, **scaler), batch or vectors(context.seed)


def perceptron(width: int = 48, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(WIDTH, width), activation(), nn.Linear(width, width), activation(), nn.Linear(width, CLASSES)
    )


def convolutions() -> nn.Sequential:
    """For vectors of WIDTH, as images of one line."""
    return nn.Sequential(
        nn.Unflatten(1, (1, WIDTH)),
        nn.Conv1d(1, 8, 3, padding=1),
        nn.BatchNorm1d(8),
        nn.ReLU(inplace=True),
        nn.Conv1d(8, 8, 3, padding=1),
        nn.BatchNorm1d(8),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(8 * WIDTH, CLASSES),
    )


def vectors(seed: int, size: int = 16, noise: float = 0.5) -> Callable[[int], Batch]:
    """Batches of noisy vectors and which of CLASSES centres they belong to."""
    centres = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(seed))

    def batch(number: int) -> Batch:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
        targets = torch.randint(CLASSES, (size,), generator=generator)
        return centres[targets] + noise * torch.randn(size, WIDTH, generator=generator), targets

    return batch


def words(seed: int, vocabulary: int, size: int = 8, length: int = 12) -> Callable[[int], Batch]:
    """Batches of sentences with few common words, and the class that the first word determines."""

    def batch(number: int) -> Batch:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
        common = torch.rand(size, length, generator=generator) ** 3
        sentences = (common * vocabulary).long()
        return sentences, sentences[:, 0] % CLASSES

    return batch
