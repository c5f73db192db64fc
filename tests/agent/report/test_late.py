"""A validation loss that arrives late belongs to its step: in the report, in a comparison, in the journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter.report import baseline, diagnosis


def train(folder: Path, late: int, steps: int = 40, seconds: float = 0.0) -> Path:
    """Each tenth step's validation loss is logged so many steps later; it is the step's own number."""
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = ammeter.watch(model, optimizer, dir=folder, name=f"late by {late}")
    assert -1 == run.step
    due: dict[int, int] = {}
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
        assert step == run.step
        if step % 10 == 9:
            due[step + late] = run.step
        if step in due:
            run.log(step=due[step], val_loss=float(due[step]))
    run.close()
    return folder / run.id


@pytest.mark.parametrize("late", [0, 1, 3, 10])
def test_a_late_validation_loss_stands_at_its_step(tmp_path: Path, late: int) -> None:
    run = train(tmp_path, late)
    curve = baseline.read(run).curve("val_loss")
    steps = [step for step in (9, 19, 29, 39) if step + late < 40]
    assert (steps, list(map(float, steps))) == (curve.steps.tolist(), curve.values.tolist())
    numbers = diagnosis.diagnose(run).as_json()["summary"]["val_loss"]
    assert (9.0, float(steps[-1]), steps[-1]) == (numbers["first"], numbers["last"], numbers["last_step"])


def test_evaluation_between_the_steps_belongs_to_the_step_before_it(tmp_path: Path) -> None:
    """In whichever mode: without gradients nothing trains."""
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    for step in range(40):
        optimizer.zero_grad()
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
        if step % 10 == 9:
            model.train(step % 20 == 9)
            with torch.no_grad():
                run.log(val_loss=model(torch.zeros(2, 6)).sum() * 0 + step)
            model.train()
    run.close()
    curve = baseline.read(tmp_path / run.id).curve("val_loss")
    assert ([9, 19, 29, 39], [9.0, 19.0, 29.0, 39.0]) == (curve.steps.tolist(), curve.values.tolist())


@pytest.mark.parametrize("step", [-1, 99, 2.5, "9", True])
def test_a_step_that_was_not_made_is_said_and_the_number_is_kept(
    tmp_path: Path, step: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
    run.log(step=step, val_loss=7.0)
    run.close()
    assert f"it is {step!r}; use a step of this process, 0 to 2" in caplog.text
    assert [2] == baseline.read(tmp_path / run.id).curve("val_loss").steps.tolist()
