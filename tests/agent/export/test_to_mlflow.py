"""A run as a run of MLflow."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ammeter.export.to_mlflow import keys_of
from tests.agent.export.conftest import LongRun
from tests.agent.export.exporting import SPECIAL, STEPS, Rows, assert_same, expected, export, narrow, recorded, refusal
from tests.agent.export.mlflow_server import tracking
from tests.agent.report.reporting import RUN
from tests.agent.stream_builder import warm
from tests.parts import library

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")
"""MLflow's, in its models for databases."""


@pytest.fixture(autouse=True)
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return library("mlflow")


def the_run(mlflow: Any, uri: str, project: str = "default") -> tuple[Any, Any]:
    """(client, the only run of the experiment)"""
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name(project).experiment_id])
    return client, run


def files_of(folder: Path, name: str) -> tuple[Rows, dict[int, int]]:
    """The metrics of the only run in a file store, and the time of each step in ms."""
    rows: Rows = {}
    times: dict[int, int] = {}
    (metrics,) = folder.glob("*/*/metrics")
    for file in metrics.rglob("*"):
        for line in file.read_text().splitlines() if file.is_file() else ():
            time, value, step = line.split()
            rows.setdefault((name, int(step)), {})[str(file.relative_to(metrics))] = float(value)
            times[int(step)] = int(time)
    return rows, times


def test_ten_thousand_steps_arrive_complete_and_with_identical_values(
    long: LongRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = export(capsys, long.path, "--to", "mlflow", tmp_path / "mlruns")
    rows, times = files_of(tmp_path / "mlruns", long.name)
    assert_same(long.rows, rows)
    assert (STEPS, long.values) == (written["rows"], written["values"])
    assert [time // 10**6 for time in long.times] == [times[step] for step in range(STEPS)]


def test_a_database_has_the_same_values_but_the_largest_double_for_infinity(
    mlflow: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library("sqlalchemy")
    stream = narrow("w")
    for value in SPECIAL:
        stream.step(loss=value)
    recorded(stream, tmp_path)
    export(capsys, tmp_path / RUN, "--to", "mlflow", f"sqlite:///{tmp_path / 'mlflow.db'}")
    client, run = the_run(mlflow, f"sqlite:///{tmp_path / 'mlflow.db'}")
    found = [point.value for point in sorted(client.get_metric_history(run.info.run_id, "loss"), key=lambda p: p.step)]
    largest = 1.7976931348623157e308
    wanted = [math.copysign(largest, value) if math.isinf(value) else float(np.float32(value)) for value in SPECIAL]
    wanted = [value + 0.0 for value in wanted]  # SQLite drops the sign of zero
    assert [value.hex() for value in wanted] == [value.hex() for value in found]


def test_a_tracking_server_gets_the_same_values_in_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = warm(150)
    name = recorded(stream, tmp_path)
    with tracking() as server:
        written = export(capsys, tmp_path / RUN, "--to", "mlflow", server.url)
    rows: Rows = {}
    for metric in server.metrics:
        rows.setdefault((name, int(metric["step"])), {})[metric["key"]] = float(metric["value"])
    assert_same(expected(stream.frames, name), rows)
    assert (written["values"], -(-written["values"] // 1000)) == (
        len(server.metrics),
        server.calls.count("runs/log-batch"),
    )


def test_the_run_has_its_name_project_settings_tags_and_end(
    mlflow: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(
        warm(3).bye("exception"),
        tmp_path,
        name="fp16",
        project="lm",
        config={"lr": 0.1, "model": {"layers": 4}},
        tags={"team@site": "a"},
        started=7 * 10**9,
    )
    written = export(capsys, tmp_path / RUN, "--to", "mlflow", tmp_path / "mlruns")
    _, run = the_run(mlflow, (tmp_path / "mlruns").as_uri(), "lm")
    assert (written["mlflow_run"], "fp16", "FAILED", 7000) == (
        run.info.run_id,
        run.info.run_name,
        run.info.status,
        run.info.start_time,
    )
    assert {"lr": "0.1", "model.layers": "4"} == run.data.params
    assert (RUN, "a") == (run.data.tags["ammeter.run"], run.data.tags["team_site"])


def test_every_rank_and_attempt_has_its_own_metrics(
    mlflow: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, started in ((0, 1), (0, 2), (1, 3)):
        recorded(narrow("w").good(loss=float(started)), tmp_path, rank=rank, started=started)
    export(capsys, tmp_path / RUN, "--to", "mlflow", tmp_path / "mlruns")
    _, run = the_run(mlflow, (tmp_path / "mlruns").as_uri())
    losses = {name: value for name, value in run.data.metrics.items() if name.endswith("/loss")}
    assert {"rank_0/attempt_1/loss": 1.0, "rank_0/attempt_2/loss": 2.0, "rank_1/loss": 3.0} == losses


def test_a_run_is_not_exported_twice_into_one_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(warm(3), tmp_path)
    words = (tmp_path / RUN, "--to", "mlflow", tmp_path / "mlruns")
    written = export(capsys, *words)
    assert f"MLflow has this run already, as {written['mlflow_run']}; delete that one first" in refusal(capsys, *words)


def test_an_export_that_fails_leaves_no_run(
    mlflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(warm(3), tmp_path)
    words = (tmp_path / RUN, "--to", "mlflow", tmp_path / "mlruns")
    with monkeypatch.context() as broken:
        broken.setattr(mlflow.MlflowClient, "set_terminated", raises)
        assert "No space left on device" in refusal(capsys, *words)
    written = export(capsys, *words)
    _, run = the_run(mlflow, (tmp_path / "mlruns").as_uri())
    assert written["mlflow_run"] == run.info.run_id


def raises(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_mlflows_own_refusal_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    recorded(warm(3), tmp_path)
    said = refusal(capsys, tmp_path / RUN, "--to", "mlflow", tmp_path / "mlruns")
    assert "ammeter export: mlflow failed with MlflowException: The filesystem tracking backend" in said


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (["loss@gan.py:41", "grad.norm/fc.weight#2"], ["loss_gan.py:41", "grad.norm/fc.weight_2"]),
        (["a@b", "a#b", "a_b"], ["a_b", "a_b_", "a_b__"]),
        (["eval", "eval/acc", "eval_acc"], ["eval", "eval_acc", "eval_acc_"]),
        (["eval/acc", "eval"], ["eval/acc", "eval_"]),
        (["a//b", "../up", "/root"], ["a/_/b", "_/up", "_/root"]),
        (["x" * 300, "y" + "x" * 300], ["x" * 250, "_" + "x" * 249]),
    ],
    ids=["characters", "collisions", "folder of another", "file of another", "paths", "length"],
)
def test_a_key_has_no_forbidden_character_is_unique_and_no_folder_of_another(names: list[str], keys: list[str]) -> None:
    assert dict(zip(names, keys, strict=True)) == keys_of(names)
