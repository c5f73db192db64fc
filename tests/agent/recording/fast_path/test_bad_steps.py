"""A bad step is recorded in full in its own step."""

from __future__ import annotations

import math
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

import ammeter
from ammeter.recording.fast_path import FULL_STEPS_AFTER_FAULT, buffer
from ammeter.recording.schedule.budget import Governor
from tests.agent.recording.fast_path.programs import BAD, FULL_STEPS, Program, measured
from tests.agent.training import events


def test_the_input_that_spoils_a_single_step_is_named(program: Program) -> None:
    bad = torch.ones(4, 8)
    bad[2, 3] = math.nan
    for step in range(40):
        program.step(bad if step == BAD else None)
        if step == BAD:
            program.model.load_state_dict(torch.nn.Sequential(*map(_fresh, program.model)).state_dict())
    rows, frames = program.read()
    assert 40 == len(rows.steps)
    (found,) = events(frames, "origin.found")
    assert (BAD, "input", "input") == (found.step, found.data["kind"], found.data["input"])
    assert 1 == found.data["nans"]


def test_the_micro_batch_that_spoils_a_single_step_is_named(program: Program) -> None:
    bad = torch.ones(4, 8)
    bad[2, 3] = math.nan
    for step in range(40):
        program.optimizer.zero_grad()
        for part in range(3):
            program.backward(bad if (step, part) == (BAD, 1) else None)
        program.update()
    _, frames = program.read()
    found = events(frames, "origin.found")[0]
    assert (BAD, "input", "input") == (found.step, found.data["kind"], found.data["input"])
    assert (1, 1, 2) == tuple(found.data[name] for name in ("nans", "micro_batch", "sample"))


def test_an_input_is_named_after_a_single_step_without_the_fast_path(
    program: Program, entered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All callbacks of that step end with it, else the next calls of the model would not be kept."""
    monkeypatch.setattr(buffer, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(Governor, "due", lambda self, step: step == 12)
    bad = torch.ones(4, 8)
    bad[2, 3] = math.nan
    for step in range(40):
        program.step(bad if step == BAD else None)
    _, frames = program.read()
    assert [FULL_STEPS, 13] == entered[:2]
    assert "input" == events(frames, "origin.found")[0].data["kind"]


def test_an_input_is_kept_no_longer_than_until_the_next_one(program: Program) -> None:
    """A batch that the program released is freed with the next forward pass, the last one by close()."""
    given: list[weakref.ref[torch.Tensor]] = []
    for _ in range(40):
        x = torch.ones(4, 8)
        given.append(weakref.ref(x))
        program.step(x)
    del x
    assert [] == [ref for ref in given[:-1] if ref() is not None]
    program.run.close()
    assert given[-1]() is None


def _fresh(module: torch.nn.Module) -> torch.nn.Module:
    if isinstance(module, torch.nn.Linear):
        module.reset_parameters()
    return module


@pytest.mark.parametrize("order", ["step, update, zero_grad", "unscale, clip, step, update"])
def test_an_overflow_in_backward_is_a_skip_in_its_step_and_its_gradients_are_read(
    order: str, tmp_path: Path, entered: list[int]
) -> None:
    program = Program(tmp_path, scaler=True)
    assert program.scaler
    for step in range(40):
        program.optimizer.zero_grad()
        program.backward(factor=1e36 if step == BAD else 1.0)
        if "clip" in order:
            program.scaler.unscale_(program.optimizer)
            torch.nn.utils.clip_grad_norm_(program.model.parameters(), 1.0)
        program.update()
    rows, frames = program.read()
    assert [BAD] == np.flatnonzero(rows.scalar("skipped")).tolist()
    assert [0.0 if step == BAD else 1.0 for step in range(40)] == measured(rows, "applied")
    assert [2.0**10, 2.0**9] == rows.scalar("scale")[BAD : BAD + 2].tolist()
    (event,) = events(frames, "gradient.nonfinite")
    assert BAD == event.step
    assert 0 < event.data["count"]
    assert [BAD] == [event.step for event in events(frames, "scaler.backoff")]


def test_a_fused_optimizer_that_applies_nothing_has_skipped(tmp_path: Path, entered: list[int]) -> None:
    """Its step() always runs, and its kernel reads found_inf."""
    program = Program(tmp_path, scaler=True)
    program.run.close()
    program.optimizer = torch.optim.SGD(program.model.parameters(), lr=1e-3, fused=True)
    program.run = ammeter.watch(program.model, program.optimizer, program.scaler, dir=tmp_path)
    entered.clear()
    for step in range(40):
        program.step(factor=1e36 if step == BAD else 1.0)
    rows, frames = program.read()
    assert 0 < entered[0] < BAD
    assert [BAD] == np.flatnonzero(rows.scalar("skipped")).tolist()
    assert 1.0 == rows.scalar("found_inf")[BAD]
    assert [BAD] == [event.step for event in events(frames, "gradient.nonfinite")]


def test_a_bad_step_keeps_the_fast_path_off_for_a_while(program: Program, entered: list[int]) -> None:
    for step in range(80):
        program.step(factor=math.inf if step == BAD and program.scaler else 1.0)
    program.read()
    began = [step for step in entered if step > BAD]
    if program.scaler:
        assert BAD + FULL_STEPS_AFTER_FAULT <= began[0] <= BAD + FULL_STEPS_AFTER_FAULT + 3
    else:
        assert 1 == len(entered)
