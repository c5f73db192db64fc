"""Where a step ends, one rule a test. What is counted is the rows in the journal and what each of them says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter.wire.columns import View
from tests.agent.training import events, stream

Parts = tuple[list[torch.nn.Linear], list[torch.optim.SGD], list[torch.amp.GradScaler]]


@pytest.fixture
def rows(tmp_path: Path) -> Callable[..., View]:
    """Runs a loop with so many models, optimizers and scalers watched, and returns the rows it made."""

    def run(loop: Callable[..., None], optimizers: int = 1, scalers: int = 0, **scaler: Any) -> View:
        torch.manual_seed(0)
        models = [torch.nn.Linear(3, 1) for _ in range(optimizers)]
        steppers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
        scaling = [torch.amp.GradScaler("cpu", **{"init_scale": 4.0, **scaler}) for _ in range(scalers)]
        watching = ammeter.watch(models, steppers, scaling, dir=tmp_path)
        loop(models, steppers, scaling)
        watching.close()
        found, frames = stream(watching.id, tmp_path)
        assert [] == events(frames, "probe.failed")
        assert list(range(len(found))) == found.steps.tolist()
        return found

    return run


def _loss(model: torch.nn.Linear, value: float = 1.0) -> Any:
    return model(torch.ones(2, 3)).square().mean() * 0 + value


def _losses(found: View) -> list[list[float]]:
    """Of each of several."""
    return [found.scalar(name).tolist() for name in found.schema.scalars if name.startswith("loss@")]


def test_update_of_the_only_scaler_ends_a_step(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(3):
            scalers[0].scale(_loss(models[0], step)).backward()
            scalers[0].step(optimizers[0])
            scalers[0].update()

    found = rows(loop, scalers=1)
    assert [0.0, 1.0, 2.0] == found.scalar("loss").tolist()
    assert [1.0] * 3 == found.scalar("applied").tolist()


def test_zero_grad_between_step_and_update_does_not_end_it(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(3):
            scalers[0].scale(_loss(models[0], step)).backward()
            scalers[0].step(optimizers[0])
            optimizers[0].zero_grad()
            scalers[0].update()

    found = rows(loop, scalers=1)
    assert [0.0, 1.0, 2.0] == found.scalar("loss").tolist()
    assert [4.0] * 3 == found.scalar("scale").tolist()


def test_micro_batches_are_counted_inside_their_step(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(8):
            scalers[0].scale(_loss(models[0], step)).backward()
            if step % 4 == 3:
                scalers[0].unscale_(optimizers[0])
                scalers[0].step(optimizers[0])
                scalers[0].update()
                optimizers[0].zero_grad()

    found = rows(loop, scalers=1)
    assert [4.0, 4.0] == found.scalar("micro_batches").tolist()
    assert [1.5, 5.5] == found.scalar("loss").tolist()


def test_update_without_a_step_ends_nothing(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for _ in range(3):
            scalers[0].scale(_loss(models[0])).backward()
            scalers[0].unscale_(optimizers[0])
            scalers[0].update()
            optimizers[0].zero_grad()

    assert 0 == len(rows(loop, scalers=1))


def test_two_scalers_are_one_step_until_one_that_updated_is_used_again(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(3):
            for model, optimizer, scaler in zip(models, optimizers, scalers, strict=True):
                optimizer.zero_grad()
                scaler.scale(_loss(model, step)).backward()
                scaler.step(optimizer)
                scaler.update()

    found = rows(loop, optimizers=2, scalers=2)
    assert [2.0] * 3 == found.scalar("applied").tolist()
    assert [[0.0, 1.0, 2.0]] * 2 == _losses(found)


def test_a_scaler_that_is_built_anew_goes_on_counting(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for epoch in range(2):
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**epoch)
            for _ in range(3):
                optimizers[0].zero_grad()
                scaler.scale(_loss(models[0])).backward()
                scaler.step(optimizers[0])
                scaler.update()

    assert [1.0] * 3 + [2.0] * 3 == rows(loop).scalar("scale").tolist()
    assert [1.0] * 3 + [2.0] * 3 == rows(loop, scalers=1).scalar("scale").tolist()


def test_zero_grad_ends_a_step_without_a_scaler(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(3):
            optimizers[0].zero_grad()
            _loss(models[0], step).backward()
            optimizers[0].step()

    found = rows(loop)
    assert [0.0, 1.0, 2.0] == found.scalar("loss").tolist()
    assert [1.0] * 3 == found.scalar("micro_batches").tolist()


def test_backward_ends_a_step_whose_gradients_nobody_reset(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(3):
            _loss(models[0], step).backward()
            optimizers[0].step()

    assert [0.0, 1.0, 2.0] == rows(loop).scalar("loss").tolist()


def test_the_same_optimizer_again_ends_a_step(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for _ in range(3):
            models[0].weight.grad = torch.ones(1, 3)
            optimizers[0].step()

    assert [1.0] * 3 == rows(loop).scalar("applied").tolist()


def test_close_ends_the_last_step(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        _loss(models[0], 5.0).backward()
        optimizers[0].step()

    assert [5.0] == rows(loop).scalar("loss").tolist()


def test_backward_without_a_step_makes_no_row(rows: Any) -> None:
    assert 0 == len(rows(lambda models, optimizers, scalers: _loss(models[0]).backward()))


def test_two_optimizers_that_take_turns_without_a_scaler_are_one_step(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(3):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                _loss(model, step).backward()
                optimizer.step()

    found = rows(loop, optimizers=2)
    assert [2.0] * 3 == found.scalar("applied").tolist()
    assert [[0.0, 1.0, 2.0]] * 2 == _losses(found)
    assert [2.0] * 3 == found.scalar("micro_batches").tolist()


def test_two_optimizers_of_one_loss_are_one_step(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            (_loss(models[0], step) + _loss(models[1])).backward()
            for optimizer in optimizers:
                optimizer.step()

    assert [1.0, 2.0, 3.0] == rows(loop, optimizers=2).scalar("loss").tolist()


def test_an_optimizer_that_steps_more_often_than_the_other_has_a_step_each_time(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(6):
            for index in (0, 1) if step % 3 == 2 else (0,):
                optimizers[index].zero_grad()
                _loss(models[index]).backward()
                optimizers[index].step()

    assert [1.0, 1.0, 2.0, 1.0, 1.0, 2.0] == rows(loop, optimizers=2).scalar("applied").tolist()


def test_a_disabled_scaler_ends_steps_like_any_other(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(3):
            optimizers[0].zero_grad()
            scalers[0].scale(_loss(models[0], step)).backward()
            scalers[0].step(optimizers[0])
            scalers[0].update()

    found = rows(loop, scalers=1, enabled=False)
    assert [0.0, 1.0, 2.0] == found.scalar("loss").tolist()
    assert [1.0] * 3 == found.scalar("applied").tolist()


def test_steps_beside_the_scaler_are_not_smeared_over_their_neighbours(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(4):
            models[0].zero_grad()
            scalers[0].scale(_loss(models[0], step)).backward()
            optimizers[0].step()  # forgotten: scaler.step

    found = rows(loop, scalers=1)
    assert [0.0, 1.0, 2.0, 3.0] == found.scalar("loss").tolist()
    assert [1.0] * 4 == found.scalar("micro_batches").tolist()


def test_an_unwatched_optimizer_ends_nothing(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        other = torch.nn.Linear(3, 1)
        stranger = torch.optim.SGD(other.parameters(), lr=0.1)
        for step in range(2):
            optimizers[0].zero_grad()
            stranger.zero_grad()
            (_loss(models[0], step) + _loss(other, 0.0)).backward()
            stranger.step()
            optimizers[0].step()
            stranger.step()

    found = rows(loop)
    assert [0.0, 1.0] == found.scalar("loss").tolist()
    assert [1.0, 1.0] == found.scalar("applied").tolist()


def test_a_step_that_raised_does_not_stop_the_counting(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        def fail() -> None:
            raise MemoryError

        for step in range(4):
            optimizers[0].zero_grad()
            _loss(models[0], step).backward()
            if step == 1:
                with pytest.raises(MemoryError):
                    optimizers[0].step(fail)
            else:
                optimizers[0].step()

    assert 4 == len(rows(loop))


def test_a_scaler_called_with_keywords_is_heard(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(2):
            optimizers[0].zero_grad()
            scalers[0].scale(outputs=_loss(models[0], step)).backward()
            scalers[0].unscale_(optimizer=optimizers[0])
            scalers[0].step(optimizer=optimizers[0])
            scalers[0].update(new_scale=8.0)

    found = rows(loop, scalers=1)
    assert [4.0, 8.0] == found.scalar("scale").tolist()
    assert [0.0, 1.0] == found.scalar("loss").tolist()


def test_without_a_scaler_the_next_forward_in_training_ends_a_step_and_what_is_logged_behind_it_is_the_next_ones(
    tmp_path: Path,
) -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watching = ammeter.watch(model, optimizer, dir=tmp_path)
    for step in range(3):
        loss = _loss(model, step)
        watching.log(behind_forward=step)
        for parameter in model.parameters():
            parameter.grad = None
        loss.backward()
        optimizer.step()
        watching.log(behind_step=step)
    watching.close()
    found, _ = stream(watching.id, tmp_path)
    assert [0.0, 1.0, 2.0] == found.scalar("behind_forward").tolist()
    assert [0.0, 1.0, 2.0] == found.scalar("behind_step").tolist()


def test_a_forward_in_evaluation_ends_nothing_and_belongs_to_no_step(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watching = ammeter.watch(model, optimizer, dir=tmp_path)
    for step in range(3):
        _loss(model, step).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            model(torch.ones(1, 3))
        model.train()
        watching.log(val_loss=step)
    watching.close()
    found, _ = stream(watching.id, tmp_path)
    assert [0.0, 1.0, 2.0] == found.scalar("val_loss").tolist()
    assert [0.0, 1.0, 2.0] == found.scalar("loss").tolist()


def test_a_scaler_that_takes_over_does_not_keep_the_step_open(rows: Any) -> None:
    """The one before it is still there. What its first steps skip belongs to those steps."""

    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(12):
            scaler = scalers[step // 4]
            optimizers[0].zero_grad()
            loss = models[0](torch.ones(2, 3)).square().mean()
            scaler.scale(loss * (1e38 if step in (4, 9) else 1.0)).backward()
            scaler.step(optimizers[0])
            scaler.update()

    found = rows(loop, scalers=3)
    assert 12 == len(found)
    assert [step in (4, 9) for step in range(12)] == (found.scalar("skipped") > 0).tolist()
    assert [1.0] * 12 == found.scalar("micro_batches").tolist()
