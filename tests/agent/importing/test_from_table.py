"""Histories in CSV and JSON files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.agent.importing.imported import bring, refusal, rows, table, times


def test_a_history_of_wandb_as_csv_keeps_steps_and_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"_step": [0, 10, 20], "_timestamp": [1.7e9, 1.7e9 + 1, 1.7e9 + 2.5], "train/loss": [2.0, math.nan, 0.1]}
    )
    frame.to_csv(tmp_path / "run.csv")
    found = bring(capsys, tmp_path / "run.csv", "--from", "csv", "--dir", tmp_path / "runs")
    assert {0: {"loss": 2.0}, 20: {"loss": float(np.float32(0.1))}} == rows(found["path"])
    assert [1.7e18, 1.7e18 + 2.5e9] == times(found["path"])


def test_json_lines_keep_nan_and_infinity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.jsonl"
    values = [{"step": 0, "loss": 1.5, "text": "a"}, {"step": 1, "loss": math.inf}, {"step": 3, "loss": math.nan}]
    file.write_text("\n".join(map(json.dumps, values)) + "\n\n")
    found = rows(bring(capsys, file, "--from", "jsonl", "--dir", tmp_path / "runs")["path"])
    assert ([0, 1, 3], 1.5, math.inf) == (list(found), found[0]["loss"], found[1]["loss"])
    assert math.isnan(found[3]["loss"])


def test_rows_without_a_step_are_counted_and_out_of_order_steps_are_sorted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--from", "csv", "--dir")
    counted = bring(capsys, table(tmp_path, ["loss", "3", "2", "1"]), *words, tmp_path / "a")
    assert {0: {"loss": 3.0}, 1: {"loss": 2.0}, 2: {"loss": 1.0}} == rows(counted["path"])
    mixed = table(tmp_path, ["step,loss,val_loss", "7,3,", "2,2,", "7,,5", "7,4,"])
    found = bring(capsys, mixed, *words, tmp_path / "b")
    assert {2: {"loss": 2.0}, 7: {"loss": 4.0, "val_loss": 5.0}} == rows(found["path"])


def test_a_number_that_float32_does_not_have_is_infinite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = bring(capsys, table(tmp_path, ["step,loss", "0,1e300"]), "--from", "csv", "--dir", tmp_path / "runs")
    assert {0: {"loss": math.inf}} == rows(found["path"])


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["step,loss", "-1,2"], "has the step -1; steps count from 0"),
        (["step,loss", "0.5,2"], "has the step 0.5; a step is a whole number"),
        (["step,loss", "inf,2"], "has the step inf; a step is a whole number"),
        (["step,loss", "nan,2"], "has the step nan; a step is a whole number"),
        (["step,loss", "1e30,2"], "has the step 1e30; a step is a whole number up to 9007199254740992"),
        (["step,word", "0,a"], "has no scalar"),
        (["step;loss", "0;2,5"], "separates its columns by ';'; separate them by commas"),
        (["step,loss,loss", "0,1,2"], "has several columns named 'loss'"),
        (["step,loss,stream", "0,1,a", "0,2,b"], "has several ranks or attempts"),
    ],
)
def test_what_is_no_history_is_refused(
    lines: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refusal(capsys, table(tmp_path, lines), "--from", "csv", "--dir", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_files_that_are_not_there_or_not_json_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = table(tmp_path, ["[1]"])
    assert "is not a file; name the one with" in refusal(capsys, tmp_path / "no.csv", "--from", "csv")
    assert "line 1 of" in refusal(capsys, file, "--from", "jsonl")
    assert "a file has one run only" in refusal(capsys, file, "--from", "csv", "--run", "a")


def test_the_same_history_is_imported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (table(tmp_path, ["step,loss", "0,1"]), "--from", "csv", "--dir", tmp_path / "runs")
    path = bring(capsys, *words)["path"]
    assert f"is imported already, as {path}; delete that folder to import it again" in refusal(capsys, *words)


def test_secrets_and_hostile_names_do_no_harm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["step,loss,\x1b[31m<script>", "0,1,2"]
    found = bring(capsys, table(tmp_path, lines), "--from", "csv", "--dir", tmp_path / "runs", "--name", "\x1b[31m")
    assert 1 == len(rows(found["path"]))
    assert 256 == len(_many(tmp_path, capsys)["metrics"])


def _many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """Imports more metrics than a run can have."""
    names = [f"metric{number}" for number in range(300)]
    file = table(tmp_path, [",".join(["step", "loss", *names]), ",".join(["0", "1", *["2"] * 300])])
    found: dict[str, list[str]] = bring(capsys, file, "--from", "csv", "--dir", tmp_path / "many")
    assert 44 == len(found["left_out"])
    return found


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_a_file_in_another_encoding_is_refused(format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run"
    file.write_text("step,loss\n0,1\n", encoding="utf-16")
    assert "in UTF-8" in refusal(capsys, file, "--from", format, "--dir", tmp_path / "runs")


def test_json_that_cannot_be_read_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    for text in (f'{{"step": 0, "loss": 1, "deep": {deep}}}', '{"step": 0, "lo'):
        file = table(tmp_path, ['{"step": 0, "loss": 1}', text])
        assert "line 2 of" in refusal(capsys, file, "--from", "jsonl", "--dir", tmp_path / "runs")


def test_a_date_that_does_not_exist_is_no_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["step,time,loss", "0,2026-02-30 10:00:00,2"]
    found = bring(capsys, table(tmp_path, lines), "--from", "csv", "--dir", tmp_path / "runs")
    assert ({0: {"loss": 2.0}}, False) == (rows(found["path"]), found["has_times"])
