"""The learning rate and the momentum of each step are those with which the optimizer stepped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ammeter.wire.columns import View, measured
from tests.agent.training import Model, stream, watching


def trained(
    tmp_path: Path, optimizers: list[torch.optim.Optimizer], model: Model, *, change: Any = None, bad: int = -1
) -> View:
    """Eight steps; change(step) comes after each, where schedules step."""
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    with watching(tmp_path, model, optimizers, scaler) as seen:
        for step in range(8):
            model.zero_grad()
            loss = model(torch.randn(8, 12)).square().mean() * (float("inf") if step == bad else 1.0)
            scaler.scale(loss).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            if change is not None:
                change(step)
    return stream(seen.run, tmp_path)[0]


def read(rows: View, column: str) -> list[float]:
    numbers = rows.scalar(column)
    return [round(float(number), 9) for number in numbers[measured(numbers)]]


def test_a_schedule_is_recorded_as_the_steps_had_it(tmp_path: Path) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    rows = trained(tmp_path, [optimizer], model, change=lambda _: schedule.step())
    assert [0.25] * 4 + [0.125] * 4 == read(rows, "optimizer_lr")
    assert [0.5] * 8 == read(rows, "optimizer_momentum")
    assert [] == read(rows, "optimizer_lr_lowest")


def test_groups_that_differ_have_a_range(tmp_path: Path) -> None:
    model = Model()
    groups: list[dict[str, Any]] = [
        {"params": model.first.parameters()},
        {"params": model.last.parameters(), "lr": 0.5},
    ]
    rows = trained(tmp_path, [torch.optim.AdamW(groups, lr=0.125, betas=(0.75, 0.9))], model)
    assert [0.125] * 8 == read(rows, "optimizer_lr")
    assert [0.125] * 8 == read(rows, "optimizer_lr_lowest")
    assert [0.5] * 8 == read(rows, "optimizer_lr_highest")
    assert [0.75] * 8 == read(rows, "optimizer_momentum")


def test_several_optimizers_share_the_range(tmp_path: Path) -> None:
    model = Model()
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.SGD(model.first.parameters(), lr=0.25),
        torch.optim.SGD(model.last.parameters(), lr=0.5),
    ]
    rows = trained(tmp_path, optimizers, model)
    assert [0.25] * 8 == read(rows, "optimizer_lr")
    assert [0.5] * 8 == read(rows, "optimizer_lr_highest")


def test_a_skipped_step_has_the_rate_that_it_would_have_used(tmp_path: Path) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)

    def change(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.25 / (step + 2)

    rows = trained(tmp_path, [optimizer], model, change=change, bad=5)
    assert 1 == rows.scalar("skipped")[5]
    assert [pytest.approx(0.25 / (step + 1)) for step in range(8)] == read(rows, "optimizer_lr")


def test_a_rate_in_a_tensor_is_read_where_that_waits_for_nothing(tmp_path: Path) -> None:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.125), foreach=False)
    rows = trained(tmp_path, [optimizer], model)
    assert [0.125] * 8 == read(rows, "optimizer_lr")


def test_an_optimizer_without_a_learning_rate_has_none(tmp_path: Path) -> None:
    class Own(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for parameter in self.param_groups[0]["params"]:
                parameter.data -= 0.01 * parameter.grad

    model = Model()
    rows = trained(tmp_path, [Own(model.parameters())], model)
    assert 8 == len(rows)
    assert not np.any(measured(rows.scalar("optimizer_lr")))
