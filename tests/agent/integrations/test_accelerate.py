"""The tracker for Accelerate, with the real library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.integrations.trained import (
    BAD_FROM,
    BATCH,
    STEPS,
    Network,
    Recorded,
    assert_same,
    batches,
    result,
    runs,
)
from tests.parts import library

accelerate = library("accelerate")
integration = library("ammeter.integrations.accelerate")


def trained(trackers: list[Any] | None, bad_from: int | None = None, accumulate: int = 1) -> dict[str, Any]:
    accelerator = accelerate.Accelerator(
        cpu=True, mixed_precision="bf16", log_with=trackers, gradient_accumulation_steps=accumulate
    )
    accelerator.init_trackers("project", config={"learning_rate": 1e-3, "batch": BATCH})
    network = Network(bad_from)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    loader = batches()
    model, optimizer, loader = accelerator.prepare(network, optimizer, loader)
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
        if step % 8 == 7:
            accelerator.log({"val_accuracy": 0.5, "comment": "text"}, step=step + 100)
    accelerator.end_training()
    return result(network)


def test_a_training_is_recorded_with_what_the_program_logs(tmp_path: Path) -> None:
    tracker = integration.AmmeterTracker(dir=tmp_path / "runs", name="tracked")
    trained([tracker])
    recorded = Recorded(tmp_path / "runs")
    assert list(range(STEPS)) == recorded.rows.steps.tolist()
    assert "tracked" == recorded.hello.name
    names = ("name", "mixed_precision", "gradient_accumulation_steps")
    assert ["accelerate", "bf16", 1] == [recorded.settings[name] for name in names]
    assert (1e-3, BATCH) == (recorded.hello.config["learning_rate"], recorded.hello.config["batch"])
    assert {7: 0.5, 15: 0.5, 23: 0.5} == recorded.logged("val_accuracy")
    assert {7: 107.0, 15: 115.0, 23: 123.0} == recorded.logged("reported_step")
    assert {} == recorded.findings()
    assert "" == tracker.tracker.id


def test_a_planted_fault_is_found(tmp_path: Path) -> None:
    trained([integration.AmmeterTracker(dir=tmp_path / "runs")], bad_from=BAD_FROM)
    assert BAD_FROM == Recorded(tmp_path / "runs").findings()["nonfinite-loss"].first_step


def test_the_training_is_the_same_without_the_tracker(tmp_path: Path) -> None:
    watched = trained([integration.AmmeterTracker(dir=tmp_path / "runs")])
    assert 1 == len(runs(tmp_path / "runs"))
    assert_same(trained(None), watched)


def test_without_the_tracker_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMMETER_DISABLE", "1")
    trained([integration.AmmeterTracker(dir=tmp_path / "runs")])
    assert [] == runs(tmp_path / "runs")


def test_accumulated_micro_batches_are_one_step(tmp_path: Path) -> None:
    trained([integration.AmmeterTracker(dir=tmp_path / "runs")], accumulate=2)
    assert dict.fromkeys(range(STEPS // 2), 2.0) == Recorded(tmp_path / "runs").logged("micro_batches")
