"""Histories that TensorBoard, W&B and MLflow wrote by themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.agent.importing.imported import bring, refusal, rows
from tests.parts import library

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
]


def board(folder: Path, tag: str, losses: list[float], first: int = 0) -> None:
    library("tensorboard")
    with library("torch.utils.tensorboard").SummaryWriter(str(folder)) as writer:
        for step, loss in enumerate(losses, first):
            writer.add_scalar(tag, loss, step)


def test_event_files_of_torch_are_read_with_the_restart_of_their_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board(tmp_path / "logs", "Loss/train", [3.0, 2.0, math.nan])
    board(tmp_path / "logs", "Loss/train", [1.5, 1.0], first=2)
    found = bring(capsys, tmp_path / "logs", "--from", "tensorboard", "--dir", tmp_path / "runs")
    assert {0: 3.0, 1: 2.0, 2: 1.5, 3: 1.0} == {step: row["loss"] for step, row in rows(found["path"]).items()}


def test_scalars_of_both_forms_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library("tensorboard")
    with library("torch.utils.tensorboard").SummaryWriter(str(tmp_path / "logs")) as writer:
        writer.add_scalar("loss", 0.1, 0, new_style=True)
        writer.add_scalar("lr", 0.5, 0, new_style=False)
        writer.add_text("note", "a", 0)
        writer.add_histogram("weights", np.ones(4), 0)
    found = bring(capsys, tmp_path / "logs", "--from", "tensorboard", "--dir", tmp_path / "runs")
    assert {0: {"loss": float(np.float32(0.1)), "optimizer_lr": 0.5}} == rows(found["path"])


def test_folders_of_training_and_validation_are_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board(tmp_path / "logs" / "train", "loss", [3.0, 2.0])
    board(tmp_path / "logs" / "validation", "loss", [4.0])
    found = bring(capsys, tmp_path / "logs", "--from", "tensorboard", "--dir", tmp_path / "runs")
    assert {0: {"loss": 3.0, "val_loss": 4.0}, 1: {"loss": 2.0}} == rows(found["path"])


def test_of_several_runs_of_tensorboard_one_is_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        board(tmp_path / "logs" / name, "loss", [1.0])
    words = (tmp_path / "logs", "--from", "tensorboard", "--dir", tmp_path / "runs")
    assert "has 2 runs; name one with --run: a, b" in refusal(capsys, *words)
    assert (tmp_path / "logs" / "b").resolve() == Path(bring(capsys, *words, "--run", "b")["source"])
    assert "is not a folder" in refusal(capsys, *words, "--run", "c")
    (tmp_path / "empty").mkdir()
    assert "there is no run in" in refusal(capsys, tmp_path / "empty", *words[1:])


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    module = library("wandb")
    yield module
    module.teardown()


def offline(wandb: Any, folder: Path, steps: int, **config: Any) -> None:
    settings = wandb.Settings(console="off", silent=True, x_disable_stats=True, x_disable_meta=True)
    run = wandb.init(mode="offline", dir=str(folder), project="vision", name="first", config=config, settings=settings)
    for step in range(steps):
        run.log({"train/loss": 1 / (step + 1), "nested": {"a": step}, "note": "text"}, step=10 * step)
    run.finish()
    wandb.teardown()  # waits until its service has written everything


def test_an_offline_run_of_wandb_is_read_to_its_last_value(
    wandb: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "wb"
    folder.mkdir()
    offline(wandb, folder, 2000, lr=0.1, api_key="sk-hidden-0123456789abcdef0123456789")
    found = bring(capsys, folder, "--from", "wandb", "--dir", tmp_path / "runs")
    brought = rows(found["path"])
    assert [10 * step for step in range(2000)] == list(brought)
    assert [float(np.float32(1 / (step + 1))) for step in range(2000)] == [row["loss"] for row in brought.values()]
    from ammeter import load

    run = load(found["path"])
    assert ("first", "vision", 0.1) == (run.name, run.project, run.config["lr"])
    assert "sk-hidden" not in str(run.config)


def test_a_file_that_is_torn_is_read_up_to_there_and_a_damaged_one_is_refused(
    wandb: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wb").mkdir()
    offline(wandb, tmp_path / "wb", 300)
    (file,) = (tmp_path / "wb").rglob("*.wandb")
    data = file.read_bytes()
    torn, damaged, other = (tmp_path / f"{name}.wandb" for name in ("torn", "damaged", "other"))
    torn.write_bytes(data[: len(data) // 2])
    damaged.write_bytes(data[:20_000] + b"\0\0\0\0" + data[20_004:])
    other.write_bytes(b"something else")
    words = ("--from", "wandb", "--dir", tmp_path / "runs")
    assert 50 < bring(capsys, torn, *words)["steps"] < 250
    assert "is damaged at byte" in refusal(capsys, damaged, *words)
    assert "is no file of an offline run of W&B" in refusal(capsys, other, *words)
    assert "there is no W&B offline run in" in refusal(capsys, tmp_path / "runs", *words)


def test_a_run_of_mlflow_is_chosen_by_its_name_and_keeps_parameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = (f"sqlite:///{tmp_path}/ml.db", "--from", "mlflow")
    assert "is no database; MLflow would create an empty one there" in refusal(capsys, *absent)
    for content in ("", "no database"):
        (tmp_path / "other.db").write_text(content)
        other = f"sqlite:///{tmp_path}/other.db"
        assert "is no database; MLflow would" in refusal(capsys, other, "--from", "mlflow")
    client = library("mlflow").MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/ml.db")
    experiment = client.create_experiment("vision")
    for name in ("one", "two"):
        run = client.create_run(experiment, run_name=name, tags={"team": "a"}).info.run_id
        client.log_param(run, "lr", 0.1)
        for step, loss in enumerate((2.0, math.inf, math.nan)):
            client.log_metric(run, "train_loss", loss, step=5 * step)
            client.log_metric(run, "unnumbered", loss)
    words = (f"sqlite:///{tmp_path}/ml.db", "--from", "mlflow", "--dir", tmp_path / "runs")
    said = refusal(capsys, *words)
    assert "has 2 MLflow runs; name one with --run: " in said
    assert "(one)" in said
    found = bring(capsys, *words, "--run", "two")
    brought = rows(found["path"])
    assert [0, 1, 2, 5, 10] == list(brought)
    assert (2.0, math.inf) == (brought[0]["loss"], brought[5]["loss"])
    assert math.isnan(brought[10]["loss"])
    assert "MLflow cannot read" in refusal(capsys, *words, "--run", "three")
    from ammeter import load

    run = load(found["path"])
    assert ("two", "vision", {"lr": "0.1"}, {"team": "a"}) == (run.name, run.project, run.config, run.tags)
