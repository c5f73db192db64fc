"""A run as a CSV file."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from tests.agent.export.conftest import LongRun
from tests.agent.export.exporting import STEPS, Rows, assert_same, export, recorded, refusal
from tests.agent.report.reporting import RUN
from tests.agent.stream_builder import warm

INDEX = ["step", "time", "rank", "host", "stream"]


def read(path: Path) -> tuple[list[dict[str, str]], Rows]:
    """The rows as text, and their values as float32."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    rows = {
        (line["stream"], int(line["step"])): {
            name: float(np.float32(cell)) for name, cell in line.items() if cell and name not in INDEX
        }
        for line in lines
    }
    return lines, rows


def test_ten_thousand_steps_arrive_complete_and_with_identical_values(
    long: LongRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = export(capsys, long.path, "--to", "csv", tmp_path / "run.csv")
    lines, rows = read(tmp_path / "run.csv")
    assert_same(long.rows, rows)
    assert (STEPS, long.values) == (written["rows"], written["values"])
    assert long.times == [int(np.datetime64(line["time"].removesuffix("Z"), "ns").astype(int)) for line in lines]
    assert {("0", "node7", long.name)} == {(line["rank"], line["host"], line["stream"]) for line in lines}


def test_signals_that_were_never_measured_have_no_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(warm(20), tmp_path)
    export(capsys, tmp_path / RUN, "--to", "csv", tmp_path / "run.csv")
    header = (tmp_path / "run.csv").read_text().partition("\n")[0].split(",")
    assert INDEX == header[: len(INDEX)]
    assert {"loss", "scale", "grad.norm/head.weight"} < set(header)
    assert not {"val_loss", "update.lost/head.weight"} & set(header)


def test_an_existing_file_is_replaced_only_with_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(warm(20), tmp_path)
    target = tmp_path / "run.csv"
    target.write_text("mine")
    said = refusal(capsys, tmp_path / RUN, "--to", "csv", target)
    assert f"'{target}' exists; name another file, or replace it with --force" in said
    assert "mine" == target.read_text()
    export(capsys, tmp_path / RUN, "--to", "csv", target, "--force")
    assert 20 == len(read(target)[0])


def test_a_device_or_a_pipe_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(warm(20), tmp_path)
    os.mkfifo(tmp_path / "pipe")
    said = refusal(capsys, tmp_path / RUN, "--to", "csv", tmp_path / "pipe", "--force")
    assert "is a device or a pipe; name a file" in said
    assert (tmp_path / "pipe").is_fifo()


def test_a_failed_export_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(warm(20), tmp_path)
    said = refusal(capsys, tmp_path / RUN, "--to", "csv", tmp_path / "missing" / "run.csv")
    assert f"the folder '{tmp_path / 'missing'}' does not exist; create it first" in said
    assert f"'{tmp_path}' is a folder" in refusal(capsys, tmp_path / RUN, "--to", "csv", tmp_path)
    assert [RUN] == [path.name for path in tmp_path.iterdir()]
