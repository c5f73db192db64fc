"""The callback for Lightning Fabric, with the real library."""

from __future__ import annotations

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

lightning = library("lightning.fabric")
integration = library("ammeter.integrations.fabric")


def trained(callbacks: list[Any], bad_from: int | None = None, spare: bool = False) -> dict[str, Any]:
    """spare: whether another optimizer of the same weights exists, which never steps."""
    precision = lightning.plugins.MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))
    fabric = lightning.Fabric(accelerator="cpu", devices=1, plugins=precision, callbacks=callbacks)
    network = Network(bad_from)
    optimizers = [torch.optim.AdamW(network.parameters(), lr=1e-3) for _ in range(1 + spare)]
    model, optimizer = fabric.setup(network, optimizers[0])
    loader = fabric.setup_dataloaders(batches())
    fabric.call("on_train_start")
    for step, batch in enumerate(loader):
        optimizer.zero_grad()
        fabric.backward(model(**batch)["loss"])
        optimizer.step()
        if step % 8 == 7:
            fabric.log("val_loss", 0.5)
            fabric.log_dict({"val_accuracy": 0.25, "loss": 3.0})
            fabric.call("on_validation_end", metrics={})
    fabric.call("on_train_end")
    return result(network)


def test_a_training_is_recorded_with_what_the_program_logs(tmp_path: Path) -> None:
    callback = integration.AmmeterCallback(dir=tmp_path / "runs", name="woven")
    trained([callback])
    recorded = Recorded(tmp_path / "runs")
    assert list(range(STEPS)) == recorded.rows.steps.tolist()
    assert dict.fromkeys(range(STEPS), 1024.0) == recorded.logged("scale")
    names = ("name", "precision", "strategy")
    assert ["lightning.fabric", "16-mixed", "SingleDeviceStrategy"] == [recorded.settings[name] for name in names]
    assert "woven" == recorded.hello.name
    assert {7: 0.5, 15: 0.5, 23: 0.5} == recorded.logged("val_loss")
    assert {7: 0.25, 15: 0.25, 23: 0.25} == recorded.logged("val_accuracy")
    assert {7: 3.0, 15: 3.0, 23: 3.0} == recorded.logged("reported_loss")
    assert {} == recorded.findings()
    assert "" == callback.run.id


def test_a_planted_fault_is_found(tmp_path: Path) -> None:
    trained([integration.AmmeterCallback(dir=tmp_path / "runs")], bad_from=BAD_FROM)
    assert BAD_FROM == Recorded(tmp_path / "runs").findings()["nonfinite-loss"].first_step


def test_the_training_is_the_same_without_the_callback(tmp_path: Path) -> None:
    watched = trained([integration.AmmeterCallback(dir=tmp_path / "runs")])
    assert 1 == len(runs(tmp_path / "runs"))
    assert_same(trained([]), watched)


def test_without_the_callback_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMMETER_DISABLE", "1")
    trained([integration.AmmeterCallback(dir=tmp_path / "runs")])
    assert [] == runs(tmp_path / "runs")


def test_of_two_optimizers_of_the_same_weights_the_one_that_steps_is_watched(tmp_path: Path) -> None:
    trained([integration.AmmeterCallback(dir=tmp_path / "runs")], spare=True)
    recorded = Recorded(tmp_path / "runs")
    assert STEPS - 1 == len(recorded.rows.steps)
    assert {1.0} == set(recorded.logged("applied").values())
