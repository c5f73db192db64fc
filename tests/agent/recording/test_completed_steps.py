"""Each step is in the ring when it completes, with the numbers that its row will have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter import journal
from ammeter.journal import CompletedStep
from ammeter.recording import row_queue
from ammeter.recording.fast_path import buffer
from ammeter.watching import delivery
from tests.agent.recording.fast_path.conftest import entered  # noqa: F401
from tests.agent.recording.fast_path.programs import FULL_STEPS, Program
from tests.agent.training import events, stream

CHANGED_LATER = {"step_seconds", "overhead_seconds"}


@pytest.fixture(autouse=True)
def shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, _no_tmpfs: None) -> None:
    """A folder in place of tmpfs, and no mirror that copies it to the disk meanwhile."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(delivery, "TMPFS_FOLDER", folder)
    monkeypatch.setattr(delivery, "begin_process", lambda *_: lambda: None)


@pytest.fixture
def unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are written only when the run closes."""
    monkeypatch.setattr(row_queue, "BATCH_SECONDS", 1e9)
    monkeypatch.setattr(row_queue, "BATCH_ROWS", 10**6)
    monkeypatch.setattr(buffer, "FLUSH_SECONDS", 1e9)
    monkeypatch.setattr(buffer, "FLUSH_STEPS", 200)


@pytest.fixture(params=[False, True], ids=["plain", "scaled"])
def program(request: pytest.FixtureRequest, tmp_path: Path, unwritten: None) -> Iterator[Program]:
    program = Program(tmp_path, scaler=request.param)
    yield program
    program.run.close()


def ring(program: Program) -> list[CompletedStep]:
    return journal.unwritten_steps(program.session.journal.folder)


def newest(program: Program) -> int:
    return journal.newest_step(program.session.journal.folder)[0]


def assert_same(program: Program, completed: list[CompletedStep]) -> None:
    """The ring has the numbers of the rows that were written later."""
    program.run.close()
    rows, frames = stream(program.run.id, program.folder)
    assert [] == events(frames, "probe.failed")
    assert completed
    for step in completed:
        at = rows.steps.tolist().index(step.step)
        for name, number in step.numbers.items():
            if name not in CHANGED_LATER:
                assert pytest.approx(float(rows.scalar(name)[at]), rel=1e-6, nan_ok=True) == number, (step.step, name)
        assert 0 < step.numbers.get("step_seconds", 1.0)


def test_a_step_is_in_the_ring_when_the_call_that_completes_it_returns(program: Program) -> None:
    for step in range(20):
        program.step()
        assert step == newest(program)
    assert list(range(20)) == [step.step for step in ring(program)]
    assert_same(program, ring(program))


@pytest.mark.usefixtures("entered")
def test_a_step_of_the_fast_path_is_in_the_ring_too(program: Program) -> None:
    for step in range(60):
        program.step()
        assert step == newest(program)
        if step == FULL_STEPS // 2:  # written rows show the samples of a micro-batch
            program.session.rows.flush()
    assert program.session.fast_path.active
    completed = ring(program)
    assert {"loss", "applied", "samples", "micro_batches"} <= completed[-1].numbers.keys()
    assert ("scale" in completed[-1].numbers) == (program.scaler is not None)
    assert_same(program, completed)


@pytest.mark.usefixtures("entered")
def test_a_bad_step_after_fast_ones_is_in_the_ring_with_its_outcome(program: Program) -> None:
    for _ in range(5 * FULL_STEPS):
        program.step()
    program.step(factor=float("inf"))
    bad = program.session.last_step
    program.step()
    assert bad + 1 == newest(program)
    assert_same(program, [step for step in ring(program) if step.step != bad])
    rows, _ = stream(program.run.id, program.folder)
    assert float(program.scaler is not None) == rows.scalar("skipped")[bad]


def test_micro_batches_are_one_step_with_the_loss_of_the_batch(program: Program) -> None:
    for _ in range(6):
        program.optimizer.zero_grad()
        for _ in range(3):
            program.backward(factor=1 / 3)
        program.update()
        if program.session.row.step == 3:  # the rows so far show what the losses are divided by
            program.session.rows.flush()
    completed = ring(program)
    assert [3.0] * 3 == [step.numbers["micro_batches"] for step in completed]
    assert_same(program, completed)
    assert "loss" in completed[-1].numbers


def test_written_rows_are_no_longer_unwritten(tmp_path: Path) -> None:
    program = Program(tmp_path)
    for _ in range(100):
        program.step()
    program.session.fast_path.leave()
    program.session.rows.flush()
    assert [] == [step for step in ring(program) if step.step < program.session.row.step]
    program.run.close()


def test_two_optimizers_without_a_scaler_are_one_step(tmp_path: Path, unwritten: None) -> None:
    model = torch.nn.Linear(4, 2)
    optimizers = [torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()]
    run = ammeter.watch(model, optimizers, dir=tmp_path)
    assert run._session is not None
    for step in range(5):
        model(torch.ones(3, 4)).square().mean().backward()
        for optimizer in optimizers:
            assert step - 1 == journal.newest_step(run._session.journal.folder)[0]
            optimizer.step()
        assert step == journal.newest_step(run._session.journal.folder)[0]
    run.close()


def test_a_forked_child_that_trains_on_does_not_touch_the_ring(program: Program) -> None:
    for _ in range(10):
        program.step()
    before = ring(program)
    child = os.fork()
    if not child:
        code = 1
        try:
            for _ in range(5):
                program.step()
            program.session.completed_steps.close_fast(77, _fast_step())
            code = 0
        finally:
            os._exit(code)
    assert 0 == os.waitpid(child, 0)[1]
    assert before == ring(program)
    program.step()
    assert 10 == newest(program)


def _fast_step() -> Any:
    from ammeter.recording.fast_path import FastStep

    return FastStep()


def test_a_ring_that_cannot_be_created_is_reported_and_training_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of a full tmpfs, whose free space was checked a moment before."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        program = Program(tmp_path)
    for _ in range(5):
        program.step()
    program.run.close()
    rows, frames = stream(program.run.id, tmp_path)
    assert list(range(5)) == rows.steps.tolist()
    (failed,) = events(frames, "probe.failed")
    assert "completed_steps" == failed.data["probe"]
    assert "No space left on device" in failed.data["error"]


def test_after_the_run_nothing_is_left_in_shared_memory(program: Program) -> None:
    program.step()
    hot = journal.hot_folder(program.session.journal.folder)
    assert hot is not None
    assert (hot / "ring").exists()
    program.run.close()
    assert not hot.exists()
