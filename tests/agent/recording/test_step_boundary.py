"""Where a step ends, one rule a test. What is counted is the rows in the journal and what each of them says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter.wire.columns import View
from tests.agent.training import stream

Parts = tuple[list[torch.nn.Linear], list[torch.optim.SGD], list[torch.amp.GradScaler]]


def loss_of(model: torch.nn.Linear, value: float = 1.0) -> Any:
    return model(torch.ones(2, 3)).square().mean() * 0 + value


def losses_of(found: View) -> list[list[float]]:
    """Of each of several."""
    return [found.scalar(name).tolist() for name in found.schema.scalars if name.startswith("loss@")]


def test_micro_batches_are_counted_inside_their_step(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(8):
            scalers[0].scale(loss_of(models[0], step)).backward()
            if step % 4 == 3:
                scalers[0].unscale_(optimizers[0])
                scalers[0].step(optimizers[0])
                scalers[0].update()
                optimizers[0].zero_grad()

    found = rows(loop, scalers=1)
    assert [4.0, 4.0] == found.scalar("micro_batches").tolist()
    assert [1.5, 5.5] == found.scalar("loss").tolist()


def test_zero_grad_ends_a_step_without_a_scaler(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(3):
            optimizers[0].zero_grad()
            loss_of(models[0], step).backward()
            optimizers[0].step()

    found = rows(loop)
    assert [0.0, 1.0, 2.0] == found.scalar("loss").tolist()
    assert [1.0] * 3 == found.scalar("micro_batches").tolist()


@pytest.mark.parametrize("optimizers", [1, 2])
def test_a_step_that_the_program_omits_because_of_nan_is_skipped(rows: Any, optimizers: int) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(4):
            for optimizer in optimizers:
                optimizer.zero_grad()
            for model in models[: len(optimizers)]:
                loss_of(model, step).backward()
            if step == 1:
                models[0].weight.grad.fill_(torch.nan)
            norms = [torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) for model in models[: len(optimizers)]]
            if all(norm.isfinite() for norm in norms):
                for optimizer in optimizers:
                    optimizer.step()

    found = rows(loop, optimizers=optimizers)
    count = float(optimizers)
    assert [0.0, count, 0.0, 0.0] == found.scalar("skipped").tolist()
    assert [count, 0.0, count, count] == found.scalar("applied").tolist()


def test_backward_ends_a_step_whose_gradients_nobody_reset(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(3):
            loss_of(models[0], step).backward()
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
        loss_of(models[0], 5.0).backward()
        optimizers[0].step()

    assert [5.0] == rows(loop).scalar("loss").tolist()


def test_backward_without_a_step_makes_no_row(rows: Any) -> None:
    assert 0 == len(rows(lambda models, optimizers, scalers: loss_of(models[0]).backward()))


def test_two_optimizers_that_take_turns_without_a_scaler_are_one_step(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(3):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                loss_of(model, step).backward()
                optimizer.step()

    found = rows(loop, optimizers=2)
    assert [2.0] * 3 == found.scalar("applied").tolist()
    assert [[0.0, 1.0, 2.0]] * 2 == losses_of(found)
    assert [2.0] * 3 == found.scalar("micro_batches").tolist()


def test_two_optimizers_of_one_loss_are_one_step(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            (loss_of(models[0], step) + loss_of(models[1])).backward()
            for optimizer in optimizers:
                optimizer.step()

    assert [1.0, 2.0, 3.0] == rows(loop, optimizers=2).scalar("loss").tolist()


def test_an_optimizer_that_steps_more_often_than_the_other_has_a_step_each_time(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(6):
            for index in (0, 1) if step % 3 == 2 else (0,):
                optimizers[index].zero_grad()
                loss_of(models[index]).backward()
                optimizers[index].step()

    assert [1.0, 1.0, 2.0, 1.0, 1.0, 2.0] == rows(loop, optimizers=2).scalar("applied").tolist()


def test_an_unwatched_optimizer_ends_nothing(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        other = torch.nn.Linear(3, 1)
        stranger = torch.optim.SGD(other.parameters(), lr=0.1)
        for step in range(2):
            optimizers[0].zero_grad()
            stranger.zero_grad()
            (loss_of(models[0], step) + loss_of(other, 0.0)).backward()
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
            loss_of(models[0], step).backward()
            if step == 1:
                with pytest.raises(MemoryError):
                    optimizers[0].step(fail)
            else:
                optimizers[0].step()

    assert 4 == len(rows(loop))


def test_without_a_scaler_the_next_forward_in_training_ends_a_step_and_what_is_logged_behind_it_is_the_next_ones(
    tmp_path: Path,
) -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watching = ammeter.watch(model, optimizer, dir=tmp_path)
    for step in range(3):
        loss = loss_of(model, step)
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
        loss_of(model, step).backward()
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


def test_a_step_whose_closure_calls_watch_is_counted(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    runs: list[Any] = []

    def training_step(step: int) -> Any:
        if step == 2:
            runs.append(ammeter.watch(model, optimizer, dir=tmp_path))
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        return loss

    for step in range(5):
        optimizer.step(lambda: training_step(step))  # noqa: B023 - called at once
    runs[0].close()
    found, _ = stream(runs[0].id, tmp_path)
    assert [2.0, 3.0, 4.0] == found.scalar("loss").tolist()
    assert [1.0] * 3 == found.scalar("applied").tolist()
