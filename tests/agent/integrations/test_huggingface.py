"""The callback for the Trainer of transformers, with the real library."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.agent.integrations.trained import (
    BAD_FROM,
    BATCH,
    STEPS,
    Network,
    Recorded,
    assert_same,
    result,
    runs,
    samples,
)
from tests.parts import library

transformers = library("transformers")
integration = library("ammeter.integrations.huggingface")


def make_trainer(
    folder: Path, callbacks: list[Any], bad_from: int | None = None, kind: Any = None, **arguments: Any
) -> Any:
    options: dict[str, Any] = {
        "max_steps": STEPS,
        "per_device_train_batch_size": BATCH,
        "use_cpu": True,
        "bf16": True,
        "eval_strategy": "steps",
        "eval_steps": 8,
        "logging_steps": 4,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "learning_rate": 1e-3,
        "metric_for_best_model": "accuracy",
    }
    return transformers.Trainer(
        model=Network(bad_from),
        args=(kind or transformers.TrainingArguments)(str(folder / "out"), **{**options, **arguments}),
        train_dataset=samples(),
        eval_dataset=samples(8),
        callbacks=callbacks,
        compute_metrics=lambda _: {"accuracy": 0.75},
    )


def trained(folder: Path, callbacks: list[Any], **options: Any) -> dict[str, Any]:
    trainer = make_trainer(folder, callbacks, **options)
    trainer.train()
    return result(trainer.model)


def test_a_training_is_recorded_with_what_the_trainer_knows(tmp_path: Path) -> None:
    trained(tmp_path, [integration.AmmeterCallback(dir=tmp_path / "runs", name="small", tags={"team": "a"})])
    recorded = Recorded(tmp_path / "runs")
    assert list(range(STEPS)) == recorded.rows.steps.tolist()
    assert STEPS == len(recorded.logged("loss"))
    assert ("small", "a", "higher") == (
        recorded.hello.name,
        recorded.hello.tags["team"],
        recorded.hello.tags["better.eval_accuracy"],
    )
    names = ("name", "version", "max_steps", "gradient_accumulation_steps", "learning_rate", "bf16", "resumed_at_step")
    assert ["transformers", transformers.__version__, STEPS, 1, 1e-3, True, 0] == [
        recorded.settings[name] for name in names
    ]
    assert [7, 15, 23] == list(recorded.logged("val_loss"))
    assert {7: 0.75, 15: 0.75, 23: 0.75} == recorded.logged("eval_accuracy")
    assert [3, 7, 11, 15, 19, 23] == list(recorded.logged("reported_loss"))
    assert [pytest.approx(at / STEPS) for at in (4, 8, 12, 16, 20, 24)] == list(recorded.logged("epoch").values())
    assert {} == recorded.findings()


def test_a_planted_fault_is_found(tmp_path: Path) -> None:
    trained(tmp_path, [integration.AmmeterCallback(dir=tmp_path / "runs")], bad_from=BAD_FROM, eval_strategy="no")
    assert BAD_FROM == Recorded(tmp_path / "runs").findings()["nonfinite-loss"].first_step


def test_the_training_is_the_same_without_the_callback(tmp_path: Path) -> None:
    watched = trained(tmp_path, [integration.AmmeterCallback(dir=tmp_path / "runs")])
    assert 1 == len(runs(tmp_path / "runs"))
    assert_same(trained(tmp_path, []), watched)


def test_without_the_callback_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMMETER_DISABLE", "1")
    trained(tmp_path, [integration.AmmeterCallback(dir=tmp_path / "runs")])
    assert [] == runs(tmp_path / "runs")


def test_a_resumed_training_is_recorded_from_its_first_step_on(tmp_path: Path) -> None:
    saves: dict[str, Any] = {"save_strategy": "steps", "save_steps": 8}
    trained(tmp_path, [], max_steps=8, **saves)
    trainer = make_trainer(tmp_path, [integration.AmmeterCallback(dir=tmp_path / "runs")], **saves)
    trainer.train(resume_from_checkpoint=True)
    recorded = Recorded(tmp_path / "runs")
    assert STEPS - 8 == len(recorded.rows.steps)
    assert 8 == recorded.settings["resumed_at_step"]


def test_accumulated_micro_batches_are_one_step(tmp_path: Path) -> None:
    halves: dict[str, Any] = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": BATCH // 2}
    trained(tmp_path, [integration.AmmeterCallback(dir=tmp_path / "runs")], **halves)
    assert dict.fromkeys(range(STEPS), 2.0) == Recorded(tmp_path / "runs").logged("micro_batches")


def test_a_second_training_of_the_trainer_is_a_second_run(tmp_path: Path) -> None:
    callback = integration.AmmeterCallback(dir=tmp_path / "runs")
    trainer = make_trainer(tmp_path, [callback], max_steps=4)
    trainer.train()
    trainer.train()
    assert 2 == len(runs(tmp_path / "runs"))
    assert "" == callback.run.id


class Unreadable(transformers.TrainingArguments):  # type: ignore[misc,name-defined]
    """Arguments that cannot be read once the training begins."""

    def to_dict(self) -> Any:
        raise RuntimeError("no")


def test_a_fault_of_the_integration_leaves_the_training_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ammeter"):
        watched = trained(tmp_path, [integration.AmmeterCallback(dir=tmp_path / "runs")], kind=Unreadable)
    said = [record.message for record in caplog.records if record.name == "ammeter"]
    assert ["ammeter: on_train_begin failed (RuntimeError: no); training goes on"] == said
    assert_same(trained(tmp_path, []), watched)


def test_mistakes_in_the_options_are_told_at_once() -> None:
    with pytest.raises(TypeError, match="the integration finds model and scaler itself"):
        integration.AmmeterCallback(model=None, scaler=None)
    with pytest.raises(TypeError, match="projct"):
        integration.AmmeterCallback(projct="a")
    with pytest.raises(ValueError, match="use http:// or https://"):
        integration.AmmeterCallback(url="no address")
    with pytest.raises(ValueError, match="preset is 'all'"):
        integration.AmmeterCallback(preset="all")
    with pytest.raises(TypeError, match="config is a str"):
        integration.AmmeterCallback(config="lr=1")
