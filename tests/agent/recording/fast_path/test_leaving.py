"""Everything unusual ends the fast path within the same call."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from ammeter import journal
from ammeter.journal import directives
from ammeter.recording.fast_path import buffer
from ammeter.recording.fast_path.buffer import Buffer
from ammeter.recording.fast_path.callbacks import Callbacks
from tests.agent.recording.fast_path.programs import BAD, FULL_STEPS, Program, measured
from tests.agent.training import events, stream


def test_a_directive_ends_the_fast_path(program: Program, entered: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast path itself polls for directives."""
    monkeypatch.setattr(buffer, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(directives, "CHECK_SECONDS", 0.0)
    for step in range(40):
        if step == BAD:
            assert 1 == len(entered)
            journal.replace(program.session.journal.folder / "directives", b'[{"arm": "origin", "steps": 3}]')
        program.step()
    _, frames = program.read()
    assert BAD + 4 <= entered[1] <= BAD + 6
    if program.scaler:  # a float16 run reports peaks in any case
        (peaks,) = events(frames, "activation.peaks")
        assert BAD + 3 <= peaks.step <= BAD + 5


@pytest.mark.parametrize("arm", ["census", "tensors", "trial"])
def test_each_reading_that_is_asked_for_has_its_steps_off_the_fast_path(
    arm: str, program: Program, entered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffer, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(directives, "CHECK_SECONDS", 0.0)
    for step in range(90):
        if step == BAD:
            asked = f'[{{"id": "a", "arm": "{arm}", "steps": 3}}]'.encode()
            journal.replace(program.session.journal.folder / "directives", asked)
        program.step()
    _, frames = program.read()
    (answer,) = events(frames, "directive.done")
    assert (3, 3) == (answer.data["steps"], answer.data["read_steps"])
    assert BAD + 3 <= answer.step <= BAD + 5
    assert BAD + 4 <= entered[1] <= BAD + 6


def test_a_closure_is_one_step_and_ends_the_fast_path(tmp_path: Path, entered: list[int]) -> None:
    program = Program(tmp_path)

    def closure() -> float:
        program.optimizer.zero_grad()
        program.backward()
        return 1.0

    for _ in range(20):
        program.step()
    for _ in range(10):
        program.optimizer.step(closure)
    rows, _ = program.read()
    assert 30 == len(rows.steps)
    assert 1 == len(entered)


def test_a_step_that_bypasses_its_scaler_closes(tmp_path: Path, entered: list[int]) -> None:
    program = Program(tmp_path, scaler=True)
    for _ in range(20):
        program.step()
    for _ in range(20):
        program.optimizer.zero_grad()
        program.backward()
        program.optimizer.step()
    rows, _ = program.read()
    assert 40 == len(rows.steps)
    assert [1.0] * 40 == measured(rows, "micro_batches")
    assert [1.0] * 40 == measured(rows, "applied")
    assert not np.isnan(rows.scalar("loss")).any()


def test_a_second_optimizer_ends_the_fast_path(tmp_path: Path, entered: list[int]) -> None:
    program = Program(tmp_path)
    for _ in range(20):
        program.step()
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)
    program.session.watched.join([], other)
    for _ in range(10):
        program.step()
        other.step()
    rows, _ = program.read()
    assert 30 == len(rows.steps)
    assert [2.0] * 8 == measured(rows, "applied")[22:]
    assert 1 == len(entered)


def test_a_function_mode_of_the_program_observes_nothing_of_ammeter(tmp_path: Path, entered: list[int]) -> None:
    class Sees(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    def seen(program: Program) -> list[str]:
        with Sees() as mode:
            for step in range(40):
                program.step(factor=math.nan if step == BAD else 1.0)
        return list(mode.seen)

    program = Program(tmp_path)
    program.step()
    found = seen(program)
    rows, _ = program.read()
    assert [4.0] * 41 == measured(rows, "samples")
    assert 1 == len(entered)
    assert math.isnan(measured(rows, "loss")[BAD + 1])
    assert found == seen(program)


@pytest.mark.parametrize(
    ("owner", "place"),
    [
        *((Callbacks, place) for place in ("_close", "_backward", "_stepping")),
        *((Buffer, place) for place in ("_move", "_flush")),
    ],
)
def test_a_fault_on_the_fast_path_activates_all_callbacks_and_training_goes_on(
    owner: type, place: str, tmp_path: Path, entered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffer, "FLUSH_SECONDS", 0.0)
    original, calls = getattr(owner, place), [0]

    def fails(self: Any, *args: Any) -> Any:
        calls[0] += 1
        if calls[0] == 10:
            raise ZeroDivisionError("a fault of ours")
        return original(self, *args)

    monkeypatch.setattr(owner, place, fails)
    program = Program(tmp_path)
    for _ in range(60):
        program.step()
    program.run.close()
    rows, frames = stream(program.run.id, tmp_path)
    (event,) = events(frames, "probe.failed")
    assert "fast_path" == event.data["probe"]
    assert 1 == len(entered)
    assert 58 <= rows.steps[-1]
    assert 58 <= len(rows.steps)


def test_the_fast_path_costs_torch_compile_no_graph(tmp_path: Path, entered: list[int]) -> None:
    torch._dynamo.reset()
    counted = torch._dynamo.utils.counters
    counted.clear()
    program = Program(tmp_path)
    program.model = torch.compile(program.model, backend="eager")
    for step in range(40):
        program.step(factor=1.0 if step != BAD else 2.0)
        if step == FULL_STEPS - 2:
            before = {name: dict(counts) for name, counts in counted.items()}
    assert before["stats"]["unique_graphs"] == counted["stats"]["unique_graphs"]
    assert entered
    rows, _ = program.read()
    assert 40 == len(rows.steps)
    torch._dynamo.reset()


def test_a_thread_that_continues_the_training_is_recorded(program: Program) -> None:
    """The first thread is alive, so that it stays the training thread."""
    for _ in range(20):
        program.step()

    def more() -> None:
        for _ in range(10):
            program.step()

    thread = threading.Thread(target=more)
    thread.start()
    thread.join()
    for _ in range(10):
        program.step()
    rows, _ = program.read()
    assert 30 == len(rows.steps)


def _raw(program: Program, scaler: torch.amp.GradScaler) -> None:
    program.loss().backward()  # type: ignore[no-untyped-call]
    scaler.step(program.optimizer)
    scaler.update()


def _past(program: Program, scaler: torch.amp.GradScaler) -> None:
    scaler.scale(program.loss()).backward()  # type: ignore[no-untyped-call]
    program.optimizer.step()


def _clipped(program: Program, scaler: torch.amp.GradScaler) -> None:
    scaler.scale(program.loss()).backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(program.model.parameters(), 1.0)
    scaler.step(program.optimizer)
    scaler.update()


def _mixed(program: Program, scaler: torch.amp.GradScaler) -> None:
    for part in range(2):
        scaler.scale(program.loss()).backward()  # type: ignore[no-untyped-call]
        if part == 0:
            scaler.unscale_(program.optimizer)
    scaler.step(program.optimizer)
    scaler.update()


LATE = {
    "usage.loss_not_scaled": _raw,
    "usage.gradients_not_unscaled": _past,
    "usage.clip_before_unscale": _clipped,
    "usage.mixed_scale": _mixed,
}


@pytest.mark.parametrize("event", LATE)
def test_calls_that_change_their_order_late_are_reported_by_the_next_step(
    event: str, tmp_path: Path, entered: list[int]
) -> None:
    program = Program(tmp_path, scaler=True)
    assert program.scaler
    for step in range(60):
        if step < BAD:
            program.step()
        else:
            program.optimizer.zero_grad()
            LATE[event](program, program.scaler)
    _, frames = program.read()
    assert entered[0] < BAD
    assert BAD <= events(frames, event)[0].step <= BAD + 1
    assert {event} == {frame.name for frame in frames if getattr(frame, "name", "").startswith("usage.")}
