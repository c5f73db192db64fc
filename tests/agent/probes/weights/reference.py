"""Models, optimizers and a float64 reference of a step's changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.distributed.fsdp

import ammeter
from ammeter.tensors.slices import positions
from ammeter.wire.columns import View, measured
from tests.agent.training import Model, events, stream

Array = npt.NDArray[np.float64]


class Convolutions(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3)
        self.norm = torch.nn.BatchNorm2d(8)
        self.second = torch.nn.Conv2d(8, 64, 3)
        self.head = torch.nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.new_ones(len(x), 3, 6, 6) * x.mean(1)[:, None, None, None] + torch.linspace(-1, 1, 6).to(x.dtype)
        found: torch.Tensor = self.head(self.second(self.norm(self.first(x)).relu()).mean((2, 3)))
        return found


class Attention(torch.nn.Module):
    """A layer whose weights have more elements than are read."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = torch.nn.Linear(12, 64)
        self.block = torch.nn.TransformerEncoderLayer(64, 4, 100, dropout=0.1, batch_first=True)
        self.head = torch.nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.block(self.inward(x[:, None, :]))[:, 0])
        return found


MODELS: dict[str, Callable[[], torch.nn.Module]] = {"mlp": Model, "cnn": Convolutions, "transformer": Attention}


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, foreach=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, foreach=True),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
}


class Reference:
    """What each step did to the weights, all in float64 and of the elements that a slice has."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.rows: list[dict[str, list[float]]] = []
        self.totals: list[dict[str, float]] = []
        self._gradients: list[Array | None] = []

    def step(self, step: Callable[[], None]) -> None:
        before, gradients = self._weights(), [_slice(parameter.grad) for parameter in self.model.parameters()]
        step()
        self._row(before, self._weights(), [None if gradient is None else gradient for gradient in gradients])
        self._gradients = gradients

    def _weights(self) -> list[Array]:
        return [found for parameter in self.model.parameters() if (found := _slice(parameter)) is not None]

    def _row(self, before: list[Array], after: list[Array], gradients: list[Array | None]) -> None:
        earlier = self._gradients or [None] * len(before)
        stands = [parameter.numel() / min(parameter.numel(), 4096) for parameter in self.model.parameters()]
        row: dict[str, list[float]] = {name: [] for name in ("norm", "ratio", "lost", "agreement")}
        sums = np.zeros(7)
        for old, new, slope, last, share in zip(before, after, gradients, earlier, stands, strict=True):
            row["norm"].append(float(np.linalg.norm(new)))
            meant = np.zeros(old.shape, bool) if slope is None else slope != 0
            same = meant & (old == new)
            moved, size = float(((new - old) ** 2).sum()), float((old**2).sum())
            row["ratio"].append(math.sqrt(moved / size) if slope is not None and size else math.nan)
            row["lost"].append(float(same.sum() / meant.sum()) if meant.any() else math.nan)
            lengths = (slope @ slope) * (last @ last) if slope is not None and last is not None else 0.0
            row["agreement"].append(float(slope @ last / math.sqrt(lengths)) if lengths else math.nan)  # type: ignore[operator]
            counted = slope is not None and size > 0
            sums[:2] += share * np.array([moved, size]) * counted
            sums[2:4] += share * np.array([same.sum(), meant.sum()])
            if lengths and slope is not None and last is not None:
                sums[4:] += share * np.array([slope @ last, slope @ slope, last @ last])
        self.rows.append(row)
        self.totals.append(
            {
                "update_ratio": math.sqrt(sums[0] / sums[1]),
                "lost_updates": sums[2] / sums[3],
                "grad_agreement": sums[4] / math.sqrt(sums[5] * sums[6]) if sums[5] else math.nan,
            }
        )


def _slice(tensor: torch.Tensor | None) -> Array | None:
    if tensor is None:
        return None
    flat: Array = tensor.detach().double().reshape(-1).numpy()
    return flat[positions(flat.size)].copy()


def every_step(run: ammeter.Run) -> None:
    assert run._session is not None
    run._session.governor.weights.share = math.inf


def follow(
    folder: Path,
    model: torch.nn.Module,
    make: Callable[..., Any],
    steps: int = 12,
    scaler: Any = None,
    spoil: Callable[[int], float] = lambda step: 1.0,
) -> tuple[View, list[Any], Reference]:
    optimizer = make(model.parameters())
    run = ammeter.watch(model, optimizer, scaler, dir=folder)
    every_step(run)
    reference = Reference(model)
    dtype = next(model.parameters()).dtype
    for step in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=scaler is not None):
            loss = torch.nn.functional.cross_entropy(
                model(torch.randn(8, 12).to(dtype)).float(), torch.randint(3, (8,))
            )
        loss = loss * spoil(step)
        if scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
            reference.step(optimizer.step)
        else:
            scaler.scale(loss).backward()
            reference.step(lambda: scaler.step(optimizer))
            scaler.update()
    run.close()
    rows, frames = stream(run.id, folder)
    assert [] == events(frames, "probe.failed")
    return rows, frames, reference


def equal(expected: float, found: float, **tolerance: Any) -> None:
    if math.isnan(expected):
        assert not measured(np.array([found], np.float32)).any(), found
    else:
        assert expected == pytest.approx(float(found), **tolerance)


def compare(rows: View, reference: Reference, steps: range) -> None:
    for stat, name in (
        ("weight.norm", "norm"),
        ("update.ratio", "ratio"),
        ("update.lost", "lost"),
        ("grad.agreement", "agreement"),
    ):
        for step in steps:
            for at, expected in enumerate(reference.rows[step][name]):
                equal(expected, rows.stat(stat)[at][step], rel=2e-4, abs=1e-5)
    for name in ("update_ratio", "lost_updates", "grad_agreement"):
        for step in steps:
            equal(reference.totals[step][name], rows.scalar(name)[step], rel=2e-4, abs=1e-5)
