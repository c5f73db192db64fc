"""Scales, overflows and skipped steps of scalers that are no GradScaler become columns, and verdicts judge them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import ammeter
from ammeter.integrations import loss_scalers
from ammeter.wire.frames import Event
from tests.agent.integrations.own_scalers import GROWTH_INTERVAL, SCALERS, train, training
from tests.agent.integrations.trained import BAD_FROM, Recorded, assert_same, result

FITS, OVERFLOWS = 2.0**10, 2.0**24
"""A scale that the gradients of the test's model bear, and one that they do not."""

pytestmark = pytest.mark.parametrize("kind", SCALERS)


def watched(
    folder: Path, kind: str, scale: float, steps: int, bad_from: int | None = None, whole: bool = False
) -> tuple[Any, Any]:
    """whole: whether the optimizer that has the scaler is followed, as engine.optimizer of DeepSpeed."""
    model, optimizer = training(SCALERS[kind](scale), bad_from)
    run = ammeter.watch(model, optimizer.optimizer, dir=folder)
    loss_scalers.follow(run, optimizer if whole else optimizer.loss_scaler)
    train(model, optimizer, steps)
    run.close()
    return model, optimizer


def events(recorded: Recorded, name: str) -> list[Any]:
    return [frame.data for frame in recorded.frames if isinstance(frame, Event) and frame.name == name]


@pytest.mark.parametrize("whole", [False, True], ids=["scaler", "optimizer"])
def test_overflows_are_skipped_steps_at_their_scale(kind: str, whole: bool, tmp_path: Path) -> None:
    _, optimizer = watched(tmp_path, kind, OVERFLOWS, 14, whole=whole)
    recorded = Recorded(tmp_path)
    skipped = [step for step, value in recorded.logged("skipped").items() if value]
    assert optimizer.skipped_steps > 3
    assert list(range(optimizer.skipped_steps)) == skipped
    assert list(range(14)) == recorded.rows.steps.tolist()
    scales = recorded.logged("scale")
    assert [OVERFLOWS / 2**step for step in skipped] == [scales[step] for step in skipped]
    assert skipped == [step for step, value in recorded.logged("found_inf").items() if value]
    backoffs = events(recorded, "scaler.backoff")
    assert [{"from": scales[step], "to": scales[step] / 2} for step in skipped] == backoffs
    assert [{"enabled": True, "scale": OVERFLOWS, "own": True}] == events(recorded, "scaler.seen")


def test_a_healthy_training_has_its_scale_and_unscaled_losses(kind: str, tmp_path: Path) -> None:
    watched(tmp_path, kind, FITS, 40)
    recorded = Recorded(tmp_path)
    scales = recorded.logged("scale")
    assert (FITS, FITS, 2 * FITS) == (scales[0], scales[GROWTH_INTERVAL - 1], scales[GROWTH_INTERVAL])
    assert 0 < min(recorded.logged("loss").values())
    assert 3 > max(recorded.logged("loss").values())
    assert {1.0} == set(recorded.logged("applied").values())
    assert {} == recorded.findings()


def test_a_collapse_of_the_scale_is_found(kind: str, tmp_path: Path) -> None:
    watched(tmp_path, kind, FITS, 60, bad_from=BAD_FROM)
    found = Recorded(tmp_path).findings()
    assert (BAD_FROM, BAD_FROM) == (found["nonfinite-loss"].first_step, found["scale-collapse"].first_step)


@pytest.mark.parametrize("scale", [OVERFLOWS, 1.0], ids=["float16", "bfloat16"])
def test_an_update_in_parts_is_one_step(kind: str, scale: float, tmp_path: Path) -> None:
    model, optimizer = training(SCALERS[kind](scale))
    optimizer.in_parts = True
    run = ammeter.watch(model, optimizer.optimizer, dir=tmp_path)
    loss_scalers.follow(run, optimizer)
    train(model, optimizer, 14)
    run.close()
    recorded = Recorded(tmp_path)
    assert 14 - optimizer.skipped_steps == sum(recorded.logged("applied").values())
    assert dict.fromkeys(range(14), 1.0) == recorded.logged("micro_batches")


def test_the_training_is_the_same_where_nobody_follows(kind: str, tmp_path: Path) -> None:
    model, optimizer = watched(tmp_path, kind, OVERFLOWS, 20)
    alone, other = training(SCALERS[kind](OVERFLOWS))
    train(alone, other, 20)
    assert_same(result(alone), result(model))
    assert float(other.loss_scaler.factor()) == float(optimizer.loss_scaler.factor())


def test_a_scale_of_1_is_none(kind: str, tmp_path: Path) -> None:
    watched(tmp_path, kind, 1.0, GROWTH_INTERVAL)
    recorded = Recorded(tmp_path)
    assert {} == recorded.logged("scale")
    assert [] == events(recorded, "scaler.seen")


def test_the_only_scaler_of_the_program_is_found(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"deepspeed": "deepspeed.runtime.fp16.loss_scaler", "fairseq": "fairseq.optim.dynamic_loss_scaler"}
    name = names.get(kind, "megatron.core.optimizer.grad_scaler")
    module: Any = ModuleType(name)
    vars(module)[loss_scalers.SCALERS[name]] = type("OfTheLibrary", (SCALERS[kind],), {})
    monkeypatch.setitem(sys.modules, name, module)
    scaler = vars(module)[loss_scalers.SCALERS[name]](OVERFLOWS)
    model, optimizer = training(scaler)
    run = ammeter.watch(model, optimizer.optimizer, dir=tmp_path)
    loss_scalers.follow_loaded(run)
    train(model, optimizer, 4)
    run.close()
    assert [OVERFLOWS / 2**step for step in range(4)] == list(Recorded(tmp_path).logged("scale").values())


def test_what_is_no_such_scaler_is_refused(kind: str) -> None:
    for other in (torch.amp.GradScaler("cpu"), torch.nn.Linear(1, 1), None):
        with pytest.raises(TypeError, match="takes a loss scaler, or an optimizer with one"):
            loss_scalers.follow(ammeter.Run(), other)
    loss_scalers.follow(ammeter.Run(), SCALERS[kind](FITS))
