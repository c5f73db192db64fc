"""A small network, its batches and losses, and the recorded losses of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import ammeter
from ammeter.wire.columns import View, measured
from tests.agent.training import events, stream

STEPS = 14
N = 4
Numbers = list[float]


def network(outputs: int = 5) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, outputs))


def batch(step: int, rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(rows, 6, generator=generator)
    return x, torch.randint(0, 5, (rows,), generator=generator)


def recorded_rows(run: ammeter.Run, folder: Path) -> View:
    run.close()
    rows, frames = stream(run.id, folder)
    assert [] == events(frames, "probe.failed")
    return rows


def loss_columns(rows: View) -> list[str]:
    """Losses that were measured."""
    return [name for name in rows.schema.scalars if name.startswith("loss") and measured(rows.scalar(name)).any()]


def mean_loss(logits: Any, y: Any) -> Any:
    return functional.cross_entropy(logits, y)


def summed_loss(logits: Any, y: Any) -> Any:
    return functional.cross_entropy(logits, y, reduction="sum")


def squared_loss(logits: Any, y: Any) -> Any:
    return (logits - functional.one_hot(y, 5)).square().sum(1).mean()


def _smooth(logits: Any, y: Any) -> Any:
    return functional.cross_entropy(logits, y, label_smoothing=0.1)


def _weighted(logits: Any, y: Any) -> Any:
    return functional.cross_entropy(logits, y) + 0.25 * logits.square().mean()


CRITERIA = {"mean": mean_loss, "squares": squared_loss, "smoothed": _smooth, "with a penalty": _weighted}
