"""Runs the trainer inside the test process: torch is imported once, and what a step did can be looked at."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch

TRAINER = Path(__file__).parents[2] / "trainer"
sys.path.insert(0, str(TRAINER))  # where `python trainer/train.py` finds its own files

import broken  # noqa: E402 - the line above has to come first
import data  # noqa: E402
import train  # noqa: E402
from console import Summary  # noqa: E402

load_once = functools.cache(data.load)


class Trains(Protocol):
    def __call__(self, *arguments: str) -> Summary: ...


@dataclass
class Seen:
    """Stands in for Ammeter and its run, and records every call of the trainer."""

    model: Any = None
    optimizers: Any = None
    scaler: Any = None
    watched: dict[str, Any] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    val_losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    samples: list[Any] = field(default_factory=list)
    gradients: list[dict[str, torch.Tensor]] = field(default_factory=list)
    """Per step and weight: the gradient as it came out of the backward pass, still scaled."""
    closed: bool = False

    def watch(self, model: Any, optimizer: Any, scaler: Any, **watched: Any) -> Seen:
        self.model, self.scaler, self.watched = model, scaler, watched
        self.optimizers = optimizer if isinstance(optimizer, list) else [optimizer]
        self.gradients.append({})
        for name, weight in model.named_parameters():
            weight.register_post_accumulate_grad_hook(self._keeper(name))
        return self

    def autocast(self, *args: Any, **options: Any) -> torch.autocast:
        return torch.autocast(*args, **options)

    def log(self, **values: Any) -> None:
        if "val_loss" in values:
            self.val_losses.append(float(values["val_loss"]))
            return
        if "loss" not in values:  # a value of the fault's own
            return
        self.losses.append(float(values["loss"]))
        self.samples.append(values["samples"])
        self.scales.append(self.scaler.get_scale() if self.scaler else 1.0)  # 1 where the scaler is disabled
        self.gradients.append({})

    def close(self) -> None:
        self.closed = True
        self.gradients.pop()

    def share(self, of: Callable[[torch.Tensor], torch.Tensor], first_step: int = 0) -> float:
        """The part of all gradient elements for which it is true."""
        flat = torch.cat([gradient.flatten() for step in self.gradients[first_step:] for gradient in step.values()])
        return of(flat).float().mean().item()

    def _keeper(self, name: str) -> Callable[[torch.Tensor], None]:
        def keep(weight: torch.Tensor) -> None:
            assert weight.grad is not None
            self.gradients[-1][name] = weight.grad.clone()

        return keep


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """At these sizes a second thread costs more than it brings."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _no_anomaly_detection() -> Iterator[None]:
    """A fault may leave it on."""
    yield
    torch.autograd.set_detect_anomaly(False)


@pytest.fixture(autouse=True)
def _own_version_and_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault may have torch say that it were another, and the clock go fast."""
    monkeypatch.setattr(torch, "__version__", torch.__version__)
    monkeypatch.setattr(time, "time_ns", time.time_ns)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Stands in for Ammeter."""
    seen = Seen()
    monkeypatch.setattr(train, "ammeter", seen)
    monkeypatch.setattr(data, "load", load_once)
    return seen


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Trains:
    """Runs the trainer at its smallest, unwatched, with --fault and --guard where they are given."""
    monkeypatch.setenv("AMMETER_DISABLE", "1")
    monkeypatch.setattr(data, "load", load_once)

    def run(*arguments: str) -> Summary:
        return broken.main(["--tiny", *arguments])

    return run
