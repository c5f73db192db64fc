"""Sessions that use the fast path soon and stay on it until something unusual happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ammeter.recording.fast_path.callbacks import Callbacks
from ammeter.recording.schedule import attention
from ammeter.recording.schedule.attention import Attention
from ammeter.recording.schedule.bucket import Bucket
from ammeter.recording.schedule.budget import Governor
from tests.agent.recording.fast_path.programs import FULL_STEPS, Program


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Uses the fast path from FULL_STEPS steps on while nothing happens; lists the steps that entered it."""
    monkeypatch.setattr(attention, "FIRST_STRETCH_STEPS", FULL_STEPS)
    monkeypatch.setattr(Attention, "_interval", lambda self, seconds: 10**6)
    monkeypatch.setattr(Bucket, "allows", lambda self: False)
    monkeypatch.setattr(Governor, "due", lambda self, step: self.norm_schedule.must_read(step))
    began: list[int] = []
    begin = Callbacks.begin

    def record(self: Callbacks, now: float) -> None:
        began.append(self._session.row.step)
        begin(self, now)

    monkeypatch.setattr(Callbacks, "begin", record)
    return began


@pytest.fixture(params=[False, True], ids=["plain", "scaled"])
def program(request: pytest.FixtureRequest, tmp_path: Path, entered: list[int]) -> Iterator[Program]:
    program = Program(tmp_path, scaler=request.param)
    yield program
    program.run.close()
