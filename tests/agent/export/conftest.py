"""One long run for all targets: writing it takes longer than most exports."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from tests.agent.export.exporting import Rows, expected, long_run, recorded, times_of
from tests.agent.report.reporting import RUN
from tests.agent.stream_builder import Stream


@dataclass(frozen=True)
class LongRun:
    folder: Path
    stream: Stream
    name: str

    @property
    def path(self) -> Path:
        return self.folder / RUN

    @cached_property
    def rows(self) -> Rows:
        return expected(self.stream.frames, self.name)

    @cached_property
    def times(self) -> list[int]:
        return times_of(self.stream.frames)

    @property
    def values(self) -> int:
        return sum(map(len, self.rows.values()))


@pytest.fixture(scope="session")
def long(tmp_path_factory: pytest.TempPathFactory) -> LongRun:
    folder, stream = tmp_path_factory.mktemp("long"), long_run()
    return LongRun(folder, stream, recorded(stream, folder, name="long"))
