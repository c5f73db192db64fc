"""A watched run that is exported and imported again has the same values and the same findings on its loss."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter.__main__ import main
from ammeter.recorded.recorded_run import load
from ammeter.verdicts import BY_ID
from tests.agent.importing.imported import bring, rows, times, verdicts
from tests.parts import library

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")

TARGETS = {
    "csv": "run.csv",
    "tensorboard": "logs",
    "mlflow": "sqlite:///mlflow.db",
    "wandb": "offline-run",
}
LIBRARIES = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}
PRECISION_NS = {"csv": 0, "tensorboard": 1000, "wandb": 1000, "mlflow": 10**6}
"""How exactly a tool keeps the time of a step: as docs/exporting.md says it."""

ON_HISTORY = {name for name, verdict in BY_ID.items() if verdict.history}


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in float16 that diverges until its loss is not finite."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.05), torch.amp.GradScaler("cpu")
    run = ammeter.watch(
        model, optimizer, scaler, dir=tmp_path_factory.mktemp("watched"), name="fp16", config={"lr": 0.05}
    )
    for step in range(300):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            outputs = model(torch.randn(3, 4))
        scaler.scale((outputs.float() - 1).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 50 == 0:
            run.log(val_loss=math.sqrt(step), accuracy=step / 300)
        if step >= 250:
            with torch.no_grad():
                next(model.parameters()).mul_(1.5)
    run.close()
    assert run.path is not None
    return run.path


@pytest.mark.parametrize("format", sorted(TARGETS))
def test_values_and_findings_on_the_loss_survive_export_and_import(
    format: str, watched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if format in LIBRARIES:
        library(LIBRARIES[format])
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.chdir(tmp_path)
    target = TARGETS[format].replace("sqlite:///", f"sqlite:///{tmp_path}/")  # MLflow keeps a store by its address
    assert 0 == main(["export", str(watched), "--to", format, target])
    capsys.readouterr()
    found = bring(capsys, target, "--from", format, "--dir", tmp_path / "runs")
    if format == "wandb":
        library("wandb").teardown()
    assert _bits(rows(watched)) == _bits(rows(found["path"]))
    wanted = {verdict: step for verdict, step in verdicts(watched).items() if verdict in ON_HISTORY}
    assert {"diverged", "nonfinite-loss", "scale-collapse"} <= wanted.keys()
    brought = verdicts(found["path"])
    assert {verdict: wanted[verdict] for verdict in wanted if verdict != "nonfinite-gradient"} == {
        verdict: step for verdict, step in brought.items() if verdict != "nonfinite-gradient"
    }
    assert max(map(abs, _differences(watched, found["path"]))) <= PRECISION_NS[format]


def _bits(found: dict[int, dict[str, float]]) -> dict[int, dict[str, str]]:
    """The values as text. The sign of zero is dropped, as databases of MLflow and W&B do."""
    return {
        step: {name: "nan" if math.isnan(value) else (value + 0.0).hex() for name, value in values.items()}
        for step, values in found.items()
    }


def _differences(one: Any, other: Any) -> list[int]:
    return [first - second for first, second in zip(times(one), times(other), strict=True)]


def test_settings_and_name_come_back_where_the_tool_keeps_them(
    watched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library("mlflow")
    monkeypatch.chdir(tmp_path)
    assert 0 == main(["export", str(watched), "--to", "mlflow", f"sqlite:///{tmp_path}/own.db"])
    capsys.readouterr()
    hello = load(Path(bring(capsys, f"sqlite:///{tmp_path}/own.db", "--from", "mlflow", "--dir", "runs")["path"])).hello
    assert ("fp16", "default", {"lr": "0.05"}) == (hello.name, hello.project, hello.config)
    assert "mlflow" == hello.environment["imported_from"]
    assert f"sqlite:///{tmp_path}/own.db" == hello.environment["imported_source"].partition("#")[0]
