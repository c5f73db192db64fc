"""Where a step of a loop with a scaler ends, one rule a test."""

from __future__ import annotations

from typing import Any

import torch

from tests.agent.recording.test_step_boundary import loss_of, losses_of


def test_update_of_the_only_scaler_ends_a_step(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(3):
            scalers[0].scale(loss_of(models[0], step)).backward()
            scalers[0].step(optimizers[0])
            scalers[0].update()

    found = rows(loop, scalers=1)
    assert [0.0, 1.0, 2.0] == found.scalar("loss").tolist()
    assert [1.0] * 3 == found.scalar("applied").tolist()


def test_zero_grad_between_step_and_update_does_not_end_it(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(3):
            scalers[0].scale(loss_of(models[0], step)).backward()
            scalers[0].step(optimizers[0])
            optimizers[0].zero_grad()
            scalers[0].update()

    found = rows(loop, scalers=1)
    assert [0.0, 1.0, 2.0] == found.scalar("loss").tolist()
    assert [4.0] * 3 == found.scalar("scale").tolist()


def test_update_without_a_step_ends_nothing(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for _ in range(3):
            scalers[0].scale(loss_of(models[0])).backward()
            scalers[0].unscale_(optimizers[0])
            scalers[0].update()
            optimizers[0].zero_grad()

    assert 0 == len(rows(loop, scalers=1))


def test_a_step_that_the_program_omits_because_of_inf_ends_at_update(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(4):
            scalers[0].scale(loss_of(models[0], step)).backward()
            if step == 1:
                models[0].weight.grad.fill_(torch.inf)
            scalers[0].unscale_(optimizers[0])
            if torch.nn.utils.clip_grad_norm_(models[0].parameters(), 1.0).isfinite():
                scalers[0].step(optimizers[0])
            scalers[0].update()
            optimizers[0].zero_grad()

    found = rows(loop, scalers=1)
    assert [0.0, 1.0, 2.0, 3.0] == found.scalar("loss").tolist()
    assert [0.0, 1.0, 0.0, 0.0] == found.scalar("skipped").tolist()
    assert [1.0, 0.0, 1.0, 1.0] == found.scalar("applied").tolist()


def test_two_scalers_are_one_step_until_one_that_updated_is_used_again(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(3):
            for model, optimizer, scaler in zip(models, optimizers, scalers, strict=True):
                optimizer.zero_grad()
                scaler.scale(loss_of(model, step)).backward()
                scaler.step(optimizer)
                scaler.update()

    found = rows(loop, optimizers=2, scalers=2)
    assert [2.0] * 3 == found.scalar("applied").tolist()
    assert [[0.0, 1.0, 2.0]] * 2 == losses_of(found)


def test_a_scaler_that_is_built_anew_goes_on_counting(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for epoch in range(2):
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**epoch)
            for _ in range(3):
                optimizers[0].zero_grad()
                scaler.scale(loss_of(models[0])).backward()
                scaler.step(optimizers[0])
                scaler.update()

    assert [1.0] * 3 + [2.0] * 3 == rows(loop).scalar("scale").tolist()
    assert [1.0] * 3 + [2.0] * 3 == rows(loop, scalers=1).scalar("scale").tolist()


def test_a_disabled_scaler_ends_steps_like_any_other(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(3):
            optimizers[0].zero_grad()
            scalers[0].scale(loss_of(models[0], step)).backward()
            scalers[0].step(optimizers[0])
            scalers[0].update()

    found = rows(loop, scalers=1, enabled=False)
    assert [0.0, 1.0, 2.0] == found.scalar("loss").tolist()
    assert [1.0] * 3 == found.scalar("applied").tolist()


def test_steps_beside_the_scaler_are_not_smeared_over_their_neighbours(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(4):
            models[0].zero_grad()
            scalers[0].scale(loss_of(models[0], step)).backward()
            optimizers[0].step()  # forgotten: scaler.step

    found = rows(loop, scalers=1)
    assert [0.0, 1.0, 2.0, 3.0] == found.scalar("loss").tolist()
    assert [1.0] * 4 == found.scalar("micro_batches").tolist()


def test_a_scaler_called_with_keywords_is_heard(rows: Any) -> None:
    def loop(models: Any, optimizers: Any, scalers: Any) -> None:
        for step in range(2):
            optimizers[0].zero_grad()
            scalers[0].scale(outputs=loss_of(models[0], step)).backward()
            scalers[0].unscale_(optimizer=optimizers[0])
            scalers[0].step(optimizer=optimizers[0])
            scalers[0].update(new_scale=8.0)

    found = rows(loop, scalers=1)
    assert [4.0, 8.0] == found.scalar("scale").tolist()
    assert [0.0, 1.0] == found.scalar("loss").tolist()


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
