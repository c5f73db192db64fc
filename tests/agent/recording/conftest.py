"""A loop that is run for its rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter.wire.columns import View
from tests.agent.training import events, stream


@pytest.fixture
def rows(tmp_path: Path) -> Callable[..., View]:
    """Runs a loop with so many models, optimizers and scalers watched, and returns the rows it made."""

    def run(loop: Callable[..., None], optimizers: int = 1, scalers: int = 0, **scaler: Any) -> View:
        torch.manual_seed(0)
        models = [torch.nn.Linear(3, 1) for _ in range(optimizers)]
        steppers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
        scaling = [torch.amp.GradScaler("cpu", **{"init_scale": 4.0, **scaler}) for _ in range(scalers)]
        watching = ammeter.watch(models, steppers, scaling, dir=tmp_path)
        loop(models, steppers, scaling)
        watching.close()
        found, frames = stream(watching.id, tmp_path)
        assert [] == events(frames, "probe.failed")
        assert list(range(len(found))) == found.steps.tolist()
        return found

    return run
