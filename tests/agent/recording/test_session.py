"""Watched or not, training is the same to the last bit, and close() removes all hooks."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter.probes.gradients.probe import Gradients
from ammeter.wire.columns import measured
from ammeter.wire.frames import Bye
from tests.agent.training import Model, Outcome, Recipe, events, stream, train

MATRIX = list(itertools.product(("fp32", "bf16", "fp16"), ("sgd", "adamw"), (None, 0.5), (1, 3)))


@pytest.mark.parametrize(("precision", "optimizer", "clip", "accumulate"), MATRIX)
@pytest.mark.parametrize("preset", ["default", "full"])
def test_fifty_watched_steps_leave_the_same_bits_as_fifty_bare_ones(
    precision: str, optimizer: str, clip: float | None, accumulate: int, preset: str, tmp_path: Path
) -> None:
    bare = _bare(precision, optimizer, clip, accumulate)
    watched = train(Recipe(precision, optimizer, clip, accumulate), watched=True, dir=tmp_path, preset=preset)
    assert bare.losses == watched.losses
    assert bare.state == watched.state
    rows, _ = stream(watched.run, tmp_path)
    assert list(range(50)) == rows.steps.tolist()


@functools.cache
def _bare(*recipe: Any) -> Outcome:
    """Trained once for all presets."""
    return train(Recipe(*recipe), watched=False)


def _attributes() -> dict[str, Any]:
    """Every attribute of the classes and modules of torch that we tap, and of those beside them."""
    owners: list[Any] = [
        torch.amp.GradScaler,
        torch.amp.autocast_mode.autocast,
        torch.cuda.amp.GradScaler,
        torch.Tensor,
        torch.nn.Module,
        torch.optim.Optimizer,
        torch.optim.AdamW,
        torch.optim.SGD,
        torch.nn.utils.clip_grad,
        torch.autograd,
        sys.modules["torch.optim.optimizer"],
    ]
    found: dict[str, Any] = {}
    for owner in owners:
        found |= {f"{owner.__name__}.{name}": value for name, value in vars(owner).items()}
    return found


def test_after_close_no_attribute_of_torch_differs(tmp_path: Path) -> None:
    train(Recipe("fp32", steps=1), watched=False)  # torch itself changes a class at its first optimizer
    before = _attributes()
    train(Recipe(clip=0.5), watched=True, dir=tmp_path)
    after = _attributes()
    assert before.keys() == after.keys()
    assert [] == [name for name in before if before[name] is not after[name]]


def test_after_close_the_watched_objects_are_as_before(tmp_path: Path) -> None:
    model, scaler = Model(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.AdamW(model.parameters())
    before = [set(vars(target)) for target in (model, optimizer, scaler)]
    run = ammeter.watch(model, optimizer, scaler, dir=tmp_path)
    during = [set(vars(target)) for target in (model, optimizer, scaler)]
    run.close()
    assert before == during == [set(vars(target)) for target in (model, optimizer, scaler)]


def test_a_fault_of_ours_is_told_once_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bare = train(Recipe(clip=0.5), watched=False)
    monkeypatch.setattr(Gradients, "_collect", lambda self, optimizer: 1 / 0)
    with caplog.at_level(logging.WARNING):
        watched = train(Recipe(clip=0.5), watched=True, dir=tmp_path)
    assert bare.state == watched.state
    assert 1 == len(caplog.records)
    assert "its gradients probe failed and is switched off (ZeroDivisionError" in caplog.text
    rows, frames = stream(watched.run, tmp_path)
    assert 50 == len(rows)
    assert ["gradients"] == [event.data["probe"] for event in events(frames, "probe.failed")]
    assert not measured(rows.scalar("grad_norm")).any()


def test_a_folder_that_cannot_be_made_leaves_training_unwatched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    outcome = train(Recipe(steps=3), watched=True, dir=tmp_path / "file" / "dir")
    assert "" == outcome.run
    assert "ammeter cannot watch this run" in caplog.text


def test_ammeter_disable_turns_everything_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMMETER_DISABLE", "1")
    assert "" == train(Recipe(steps=3), watched=True, dir=tmp_path).run
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 3}, "budget is 3; use a share of step time"),
        ({"preset": "heavy"}, "preset is 'heavy'; use one of light, default, full"),
        ({"url": "collector:8480"}, "url is 'collector:8480'; use http"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused_with_its_value(options: dict[str, Any], message: str) -> None:
    model = Model()
    with pytest.raises(ValueError, match=message):
        ammeter.watch(model, torch.optim.SGD(model.parameters(), lr=1), **options)


def test_a_wrong_argument_is_refused_by_its_type() -> None:
    model = Model()
    with pytest.raises(TypeError, match=r"optimizer is a Model; watch\(\) takes a Optimizer"):
        ammeter.watch(model, model)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    with pytest.raises(TypeError, match=r"also\['ema'\] is a OrderedDict; watch\(\) takes a Module"):
        ammeter.watch(model, optimizer, also={"ema": model.state_dict()})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"also is a Model; watch\(\) takes a dict, such as \{'ema': ema_model\}"):
        ammeter.watch(model, optimizer, also=model)  # type: ignore[arg-type]


def test_a_forked_child_neither_writes_nor_says_goodbye(tmp_path: Path) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    optimizer.step()
    child = os.fork()
    if child == 0:
        optimizer.step()
        run.close()
        os._exit(0)
    os.waitpid(child, 0)
    optimizer.step()
    run.close()
    rows, frames = stream(run.id, tmp_path)
    assert [0, 1] == rows.steps.tolist()
    assert 1 == sum(isinstance(frame, Bye) for frame in frames)


def test_a_secret_in_the_config_is_not_written(tmp_path: Path) -> None:
    model = Model()
    config = {"lr": 0.1, "api_key": "hunter2", "nested": {"db_password": "hunter2", "shape": (1, 2)}, "kind": Model}
    ammeter.watch(model, torch.optim.SGD(model.parameters(), lr=1), config=config, dir=tmp_path, name="n").close()
    (segment,) = tmp_path.glob("*/*/*.seg")
    assert b"hunter2" not in segment.read_bytes()
