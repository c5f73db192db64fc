"""A device that delivers its numbers late, or never: rows wait, are lost where they must be, and are counted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ammeter
from ammeter.recording import row_queue
from ammeter.tensors.async_copy import Array
from ammeter.wire.frames import Bye, Lost
from tests.agent.training import stream


class Number:
    """A number on its way from a device; the test says when it is there."""

    on_host = False

    def __init__(self) -> None:
        self.there = False

    def ready(self) -> bool:
        return self.there

    def array(self) -> Array:
        assert self.there, "read before it was there"
        return np.array([7.0], np.float32)

    def number(self) -> float:
        return float(self.array()[0])


class Program:
    """A loop whose every step has one such number."""

    def __init__(self, folder: Path) -> None:
        model = torch.nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.model, self.folder = model, folder
        self.run = ammeter.watch(model, self.optimizer, dir=folder)
        assert self.run._session is not None
        self.session = self.run._session

    def step(self) -> Number:
        self.optimizer.zero_grad()
        self.model(torch.ones(1, 2)).sum().backward()
        number = Number()
        self.session.row.later("user:late", number)
        self.session.columns.add(["late"], 10)
        self.optimizer.step()
        return number

    def read(self) -> tuple[Any, list[Any]]:
        return stream(self.run.id, self.folder)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.setattr(row_queue, "DRAIN_SECONDS", 0.05)
    return Program(tmp_path)


def test_rows_are_written_in_order_when_their_numbers_arrive(program: Program) -> None:
    numbers = [program.step() for _ in range(5)]
    for number in reversed(numbers):
        number.there = True
    program.run.close()
    rows, frames = program.read()
    assert [0, 1, 2, 3, 4] == rows.steps.tolist()
    assert [7.0] * 5 == rows.scalar("late").tolist()
    assert [] == [frame for frame in frames if isinstance(frame, Lost)]


def test_a_number_that_never_arrives_costs_its_row_which_is_counted(program: Program) -> None:
    for index in range(5):
        program.step().there = index != 2
    began = time.monotonic()
    program.run.close()
    assert time.monotonic() - began < 2
    rows, frames = program.read()
    assert [0, 1, 3, 4] == rows.steps.tolist()
    assert [Lost("device-late", 1, 0)] == [frame for frame in frames if isinstance(frame, Lost)]
    assert [("closed", 4)] == [(frame.reason, frame.step) for frame in frames if isinstance(frame, Bye)]


def test_a_device_far_behind_loses_the_oldest_rows_and_memory_stays_bounded(program: Program) -> None:
    numbers = [program.step() for _ in range(row_queue.MAX_LATE_ROWS + 10)]
    assert len(program.session.rows._closed) <= row_queue.MAX_LATE_ROWS + 1
    for number in numbers:
        number.there = True
    program.run.close()
    rows, frames = program.read()
    lost = sum(frame.steps for frame in frames if isinstance(frame, Lost))
    assert len(numbers) == len(rows) + lost
    assert lost < 10
    assert len(numbers) - 1 == rows.steps[-1]
