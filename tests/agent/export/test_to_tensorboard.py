"""A run as TensorBoard event files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agent.export.conftest import LongRun
from tests.agent.export.exporting import STEPS, Rows, assert_same, export, narrow, recorded, refusal
from tests.agent.report.reporting import RUN
from tests.agent.stream_builder import warm
from tests.parts import library


@pytest.fixture(scope="module")
def loader() -> Any:
    return library("tensorboard.backend.event_processing.event_file_loader")


def events(loader: Any, folder: Path) -> list[Any]:
    """The events of the only file in a folder, without the one that states the version."""
    (file,) = folder.iterdir()
    event_class = library("tensorboard.compat.proto.event_pb2").Event
    return [event_class.FromString(record) for record in loader.RawEventFileLoader(str(file)).Load()][1:]


def rows_of(events: list[Any], name: str) -> Rows:
    return {(name, event.step): {value.tag: value.simple_value for value in event.summary.value} for event in events}


def test_ten_thousand_steps_arrive_complete_and_with_identical_values(
    loader: Any, long: LongRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = export(capsys, long.path, "--to", "tensorboard", tmp_path / "logs")
    found = events(loader, tmp_path / "logs" / "rank_0")
    assert_same(long.rows, rows_of(found, long.name))
    assert (STEPS, long.values) == (written["rows"], written["values"])
    assert [time / 1e9 for time in long.times] == [event.wall_time for event in found]


def test_every_rank_and_attempt_is_a_run_of_tensorboard_with_its_scalars(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    accumulator = library("tensorboard.backend.event_processing.event_accumulator")
    for rank, started in ((0, 1), (0, 2), (1, 3)):
        recorded(narrow("w").good(), tmp_path, rank=rank, started=started)
    export(capsys, tmp_path / RUN, "--to", "tensorboard", tmp_path / "logs")
    folders = [path.parent.relative_to(tmp_path / "logs") for path in (tmp_path / "logs").rglob("events.*")]
    assert ["rank_0/attempt_1", "rank_0/attempt_2", "rank_1"] == sorted(map(str, folders))
    shown = accumulator.EventAccumulator(str(tmp_path / "logs" / "rank_1"))
    shown.Reload()
    assert ["applied", "grad.norm/w", "grad_norm", "loss", "skipped"] == sorted(shown.Tags()["scalars"])
    assert [(0, 2.0)] == [(point.step, point.value) for point in shown.Scalars("loss")]


def test_tensorflow_is_not_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library("tensorboard")
    recorded(warm(3), tmp_path)
    export(capsys, tmp_path / RUN, "--to", "tensorboard", tmp_path / "logs")
    assert "tensorflow" not in sys.modules


def test_a_folder_with_content_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library("tensorboard")
    recorded(warm(3), tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "mine").touch()
    words = (tmp_path / RUN, "--to", "tensorboard", tmp_path / "logs")
    assert "exists and is not an empty folder; name another one" in refusal(capsys, *words)
    assert "--force replaces a file of csv, parquet or record; for tensorboard name a new target" in refusal(
        capsys, *words, "--force"
    )
    assert ["mine"] == [path.name for path in (tmp_path / "logs").iterdir()]
