"""The logger for torchtitan, with the parts of its interface that it uses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ammeter.integrations import loaded
from tests.agent.integrations import torchtitan_interface as titan
from tests.agent.integrations.trained import BAD_FROM, STEPS, Recorded, assert_same, result, runs


@pytest.fixture
def integration(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    titan.install(monkeypatch)
    yield import_module("ammeter.integrations.torchtitan")
    sys.modules.pop("ammeter.integrations.torchtitan", None)


def trained(integration: Any, folder: Path | None, bad_from: int | None = None, loaded_step: int = 0) -> Any:
    trainer = titan.Trainer(bad_from, loaded_step)
    if folder is not None:
        trainer.metrics_processor.logger = integration.AmmeterLogger(trainer, dir=folder, name="titan")
    trainer.train()
    trainer.close()
    return trainer


def test_it_is_a_logger_of_torchtitan_and_hands_on_what_it_receives(integration: Any, tmp_path: Path) -> None:
    assert issubclass(integration.AmmeterLogger, titan.BaseLogger)
    trainer = titan.Trainer()
    inner: Any = trainer.metrics_processor.logger
    trainer.metrics_processor.logger = integration.AmmeterLogger(trainer, dir=tmp_path)
    trainer.train()
    trainer.close()
    assert [1, 4, 8, 8, 12, 16, 16, 20, 24, 24] == [step for _, step in inner.logged]
    assert inner.is_closed


def test_a_training_is_recorded_with_what_the_trainer_knows(integration: Any, tmp_path: Path) -> None:
    trained(integration, tmp_path)
    recorded = Recorded(tmp_path)
    assert list(range(STEPS)) == recorded.rows.steps.tolist()
    assert {2.0} == set(recorded.logged("applied").values())
    names = ("name", "version", "training", "model_spec", "resumed_at_step")
    expected = ["torchtitan", "0.3.0", {"steps": STEPS, "max_norm": 1.0}, {"name": "llama3"}, 0]
    assert expected == [recorded.settings[name] for name in names]
    assert {7: 0.5, 15: 0.5, 23: 0.5} == recorded.logged("val_loss")
    assert {0: 1.0, 3: 4.0, 7: 8.0, 11: 12.0, 15: 16.0, 19: 20.0, 23: 24.0} == recorded.logged("reported_step")
    assert recorded.logged("reported_grad_norm").keys() == recorded.logged("reported_step").keys()
    assert {} == recorded.findings()


def test_a_planted_fault_is_found(integration: Any, tmp_path: Path) -> None:
    trained(integration, tmp_path, bad_from=BAD_FROM)
    assert BAD_FROM == Recorded(tmp_path).findings()["nonfinite-loss"].first_step


def test_the_training_is_the_same_without_the_logger(integration: Any, tmp_path: Path) -> None:
    watched = trained(integration, tmp_path)
    assert 1 == len(runs(tmp_path))
    assert_same(result(trained(integration, None).model_parts[0]), result(watched.model_parts[0]))


def test_the_step_that_creates_the_state_of_a_resumed_optimizer_is_no_step_of_the_run(
    integration: Any, tmp_path: Path
) -> None:
    trained(integration, tmp_path, loaded_step=100)
    recorded = Recorded(tmp_path)
    assert (STEPS, 100) == (len(recorded.rows.steps), recorded.settings["resumed_at_step"])
    assert {} == recorded.findings()


def test_an_automatic_run_knows_the_same(integration: Any) -> None:
    trainer = titan.Trainer()
    trainer.step = 1
    known = loaded.known(trainer.optimizers.optimizers)
    assert ("torchtitan", 0) == (known.config["framework"]["name"], known.config["framework"]["resumed_at_step"])
    (handle,) = known.attach(integration.Run())
    handle.remove()
