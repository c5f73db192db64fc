"""The register of healthy programs, and the steps that they share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Program = Callable[[Path], Any]
"""Trains with a journal in the folder and returns the watching() of the run."""

HEALTHY: list[Program] = []


def healthy(program: Program) -> Program:
    HEALTHY.append(program)
    return program


def scaler(scale: float = 2.0**10, **options: Any) -> Any:
    return torch.amp.GradScaler("cpu", init_scale=scale, **options)


def loss_of(model: Any, dtype: torch.dtype | None = torch.float16) -> Any:
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        output = model(torch.randn(8, 12))
    return output.float().square().mean()


def sgd(model: torch.nn.Module, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), **{"lr": 1e-3, "momentum": 0.9, **options})


def scaled_backward(model: Any, optimizer: torch.optim.Optimizer, scales: torch.amp.GradScaler) -> None:
    """The gradients of one batch, multiplied by the scale."""
    optimizer.zero_grad()
    scales.scale(loss_of(model)).backward()


def scaled_step(model: Any, optimizer: torch.optim.Optimizer, scales: torch.amp.GradScaler) -> None:
    """One step as the documentation of torch.amp writes it."""
    scaled_backward(model, optimizer, scales)
    scales.step(optimizer)
    scales.update()
