"""A run as files of the offline mode of Weights & Biases."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.export.conftest import LongRun
from tests.agent.export.exporting import STEPS, Rows, assert_same, export, narrow, recorded, refusal
from tests.agent.report.reporting import RUN
from tests.agent.stream_builder import warm
from tests.parts import library

BLOCK_BYTES, FILE_HEADER_BYTES, HEADER_BYTES = 32768, 7, 7
"""Of the format of LevelDB's log, in which W&B writes its records."""


@pytest.fixture(autouse=True)
def wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    module = library("wandb")
    yield module
    module.teardown()


def records(folder: Path) -> Iterator[Any]:
    """The records of the only run in a folder."""
    kind = library("wandb.proto.wandb_internal_pb2").Record
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, at, parts = file.read_bytes(), FILE_HEADER_BYTES, b""
    while at + HEADER_BYTES <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < HEADER_BYTES:
            at += left
            continue
        _, size, place = struct.unpack_from("<IHB", data, at)
        parts += data[at + HEADER_BYTES : at + HEADER_BYTES + size]
        at += HEADER_BYTES + size
        if place in (1, 4):  # a whole record, or the last part of one
            yield kind.FromString(parts)
            parts = b""


def history(folder: Path) -> list[dict[str, float]]:
    """The logged values of each step with those that W&B adds, whose names begin with an underscore."""
    items = [record.history.item for record in records(folder) if record.WhichOneof("record_type") == "history"]
    return [{item.key or item.nested_key[0]: value_of(item) for item in row} for row in items]


def value_of(item: Any) -> float:
    return float(json.loads(item.value_json))


def rows_of(lines: list[dict[str, float]], name: str) -> Rows:
    return {
        (name, int(line["_step"])): {key: value for key, value in line.items() if not key.startswith("_")}
        for line in lines
    }


def test_ten_thousand_steps_arrive_complete_and_with_identical_values(
    long: LongRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = export(capsys, long.path, "--to", "wandb", tmp_path / "wb")
    lines = history(tmp_path / "wb")
    wanted = {row: {name: value + 0.0 for name, value in values.items()} for row, values in long.rows.items()}
    assert_same(wanted, rows_of(lines, long.name))  # W&B's own writer drops the sign of zero
    assert (STEPS, long.values) == (written["rows"], written["values"])
    assert [time / 1e9 for time in long.times] == [line["_timestamp"] for line in lines]


def test_the_values_of_all_streams_at_a_step_are_logged_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, loss in ((0, 1.0), (1, 3.0)):
        recorded(narrow("w").good(loss=loss).good(), tmp_path, rank=rank)
    export(capsys, tmp_path / RUN, "--to", "wandb", tmp_path / "wb")
    lines = history(tmp_path / "wb")
    assert [0, 1] == [line["_step"] for line in lines]
    assert (1.0, 3.0) == (lines[0]["rank_0/loss"], lines[0]["rank_1/loss"])
    assert math.isclose(lines[0]["_timestamp"], lines[0]["rank_1/time"])


def test_the_run_has_its_name_project_and_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(warm(3), tmp_path, name="fp16", project="team/lm", config={"lr": 0.1})
    written = export(capsys, tmp_path / RUN, "--to", "wandb", tmp_path / "wb")
    (run,) = [record.run for record in records(tmp_path / "wb") if record.WhichOneof("record_type") == "run"]
    settings = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert ("fp16", "team-lm", written["wandb_run"]) == (run.display_name, run.project, run.run_id)
    assert (0.1, RUN) == (settings["lr"], settings["ammeter_run"])


def test_nothing_of_the_exporting_process_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(warm(3), tmp_path)
    export(capsys, tmp_path / RUN, "--to", "wandb", tmp_path / "wb")
    kinds = {record.WhichOneof("record_type") for record in records(tmp_path / "wb")}
    assert "history" in kinds
    assert not {"environment", "output", "output_raw", "stats"} & kinds
    assert [] == [path for path in tmp_path.rglob("files/*") if path.is_file()]


def test_an_upload_is_offline_where_wandb_mode_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    recorded(warm(3), tmp_path)
    export(capsys, tmp_path / RUN, "--to", "wandb", "wandb:lm")
    assert 3 == len(history(tmp_path))


def test_a_folder_with_content_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(warm(3), tmp_path)
    (tmp_path / "mine").touch()
    said = refusal(capsys, tmp_path / RUN, "--to", "wandb", tmp_path)
    assert "exists and is not an empty folder; name another one" in said


def test_what_wandb_refuses_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(warm(3), tmp_path)
    said = refusal(capsys, tmp_path / RUN, "--to", "wandb", "wandb:50%")
    assert "ammeter export: wandb failed with" in said
    assert "found '%'" in said
