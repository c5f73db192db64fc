"""Values of run.log and events on the fast path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.agent.recording.fast_path.programs import BAD, Program, measured
from tests.agent.training import events


@pytest.mark.parametrize("value", [float, int, np.float32, np.int64, lambda step: torch.tensor(float(step))])
def test_run_log_adds_to_the_step_before(value: Callable[[int], Any], program: Program) -> None:
    for step in range(40):
        program.step()
        program.run.log(mine=value(step), samples=4)
        if step == 35:
            program.run.log(late=1.0)
    rows, _ = program.read()
    assert [float(step) for step in range(40)] == measured(rows, "mine")
    assert [4.0] * 40 == measured(rows, "samples")
    assert [35] == np.flatnonzero(~np.isnan(rows.scalar("late"))).tolist()


def test_values_logged_before_backward_belong_to_that_step(program: Program, entered: list[int]) -> None:
    """As many programs do: the loss as soon as it is there, the learning rate when the step is over."""
    for step in range(40):
        program.optimizer.zero_grad()
        loss = program.loss()
        program.run.log(mine=step)
        (program.scaler.scale(loss) if program.scaler else loss).backward()  # type: ignore[no-untyped-call]
        program.update()
        program.run.log(rate=step)
    rows, _ = program.read()
    assert entered[0] < BAD
    assert [float(step) for step in range(40)] == measured(rows, "mine")
    assert [float(step) for step in range(40)] == measured(rows, "rate")


def test_a_program_that_logs_an_array_does_not_use_the_fast_path(program: Program, entered: list[int]) -> None:
    for _ in range(40):
        program.step()
        program.run.log(loss=np.ones(3))
    rows, _ = program.read()
    assert len(entered) <= 1
    assert 40 == len(rows.steps)


def test_an_event_of_a_fast_step_is_in_that_step(program: Program, tmp_path: Path) -> None:
    for step in range(40):
        program.step()
        if step == BAD:
            torch.save(
                {"model": program.model.state_dict(), "optimizer": program.optimizer.state_dict()}, tmp_path / "x"
            )
    rows, frames = program.read()
    (saved,) = events(frames, "checkpoint.saved")
    assert BAD <= saved.step <= BAD + 1
    assert 40 == len(rows.steps)
