"""The callback for the Trainer of Lightning, with the real library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.integrations.trained import (
    BAD_FROM,
    STEPS,
    Network,
    Recorded,
    assert_same,
    batches,
    result,
    runs,
)
from tests.parts import library

lightning = library("lightning.pytorch")
integration = library("ammeter.integrations.lightning")

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning",  # Lightning with the present torch
    "ignore:.*num_workers:UserWarning",
    "ignore:.*logging interval:UserWarning",
    "ignore:.*exists and is not empty:UserWarning",
)


class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
    def __init__(self, bad_from: int | None = None, width: int = 16) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = Network(bad_from)

    def training_step(self, batch: Any, _: int) -> Any:
        loss = self.network(**batch)["loss"]
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("val_loss", self.network(**batch)["loss"])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def trained(folder: Path, callbacks: list[Any], bad_from: int | None = None, ckpt: Any = None, **more: Any) -> Any:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    options: dict[str, Any] = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "plugins": lightning.plugins.MixedPrecision("16-mixed", "cpu", scaler),
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "val_check_interval": 8,
        "gradient_clip_val": 5.0,
        "default_root_dir": folder,
    }
    model = Module(bad_from)
    loader = batches()
    held_out = batches(8)
    trainer = lightning.Trainer(callbacks=callbacks, **{**options, **more})
    trainer.fit(model, loader, held_out, ckpt_path=ckpt)
    return trainer


def test_a_training_is_recorded_with_what_the_trainer_knows(tmp_path: Path) -> None:
    trained(tmp_path, [integration.AmmeterCallback(dir=tmp_path / "runs", project="lit")])
    recorded = Recorded(tmp_path / "runs")
    assert list(range(STEPS)) == recorded.rows.steps.tolist()
    assert dict.fromkeys(range(STEPS), 1024.0) == recorded.logged("scale")
    names = ("name", "hparams", "accumulate_grad_batches", "gradient_clip_val", "strategy", "resumed_at_step")
    assert ["lightning.pytorch", {"width": 16}, 1, 5.0, "SingleDeviceStrategy", 0] == [
        recorded.settings[name] for name in names
    ]
    assert "lit" == recorded.hello.project
    assert [7, 15, 23] == list(recorded.logged("val_loss"))
    assert {7: 0.0, 15: 0.0, 23: 0.0} == recorded.logged("epoch")
    assert {} == recorded.findings()


def test_a_planted_fault_is_found(tmp_path: Path) -> None:
    trained(tmp_path, [integration.AmmeterCallback(dir=tmp_path / "runs")], bad_from=BAD_FROM)
    assert BAD_FROM == Recorded(tmp_path / "runs").findings()["nonfinite-loss"].first_step


def test_the_training_is_the_same_without_the_callback(tmp_path: Path) -> None:
    watched = trained(tmp_path, [integration.AmmeterCallback(dir=tmp_path / "runs")])
    assert 1 == len(runs(tmp_path / "runs"))
    assert_same(result(trained(tmp_path, []).model), result(watched.model))


def test_without_the_callback_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMMETER_DISABLE", "1")
    trained(tmp_path, [integration.AmmeterCallback(dir=tmp_path / "runs")])
    assert [] == runs(tmp_path / "runs")


def test_accumulated_micro_batches_are_one_step(tmp_path: Path) -> None:
    trained(tmp_path, [integration.AmmeterCallback(dir=tmp_path / "runs")], accumulate_grad_batches=2)
    assert dict.fromkeys(range(STEPS // 2), 2.0) == Recorded(tmp_path / "runs").logged("micro_batches")


def test_a_resumed_training_is_recorded_from_its_first_step_on(tmp_path: Path) -> None:
    trained(tmp_path, [], enable_checkpointing=True).save_checkpoint(tmp_path / "last.ckpt")
    callback = integration.AmmeterCallback(dir=tmp_path / "runs")
    trained(tmp_path, [callback], ckpt=tmp_path / "last.ckpt", max_epochs=2, enable_checkpointing=True)
    recorded = Recorded(tmp_path / "runs")
    assert STEPS == len(recorded.rows.steps)
    assert STEPS == recorded.settings["resumed_at_step"]
    assert {1.0} == set(recorded.logged("epoch").values())


def test_two_callbacks_are_one_run(tmp_path: Path) -> None:
    trained(tmp_path, [integration.AmmeterCallback(dir=tmp_path / name) for name in ("runs", "others")])
    assert (1, 0) == (len(runs(tmp_path / "runs")), len(runs(tmp_path / "others")))


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_the_callback_is_one_of_the_package_that_the_program_has_imported(package: str) -> None:
    program = f"import {package} as used; from ammeter.integrations.lightning import AmmeterCallback as callback"
    command = [sys.executable, "-W", "ignore", "-c", f"{program}; print(issubclass(callback, used.Callback))"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "True\n" == done.stdout, done.stderr
