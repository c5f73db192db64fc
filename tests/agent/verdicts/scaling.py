"""A small program that scales its loss as it should, for verdicts on what is wrong with the scaler."""

from __future__ import annotations

from typing import Any

import torch


def small() -> tuple[Any, Any]:
    """A network and what steps it."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
    return model, torch.optim.Adam(model.parameters())


def train(model: Any, optimizer: Any, scaler: Any, dtype: torch.dtype = torch.float16) -> None:
    """Five steps."""
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = model(torch.randn(8, 6)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
