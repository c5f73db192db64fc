"""Several losses of a step are several columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import ammeter
from ammeter.wire.columns import measured
from tests.agent.recording.losses.loss_programs import (
    Numbers,
    batch,
    loss_columns,
    mean_loss,
    network,
    recorded_rows,
    squared_loss,
)


class Gan:
    """Two networks that take turns, and what each was trained on."""

    def __init__(self, scalers: int) -> None:
        torch.manual_seed(0)
        self.maker = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 6))
        self.critic = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        self.optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3) for model in (self.critic, self.maker)]
        self.scalers = [torch.amp.GradScaler("cpu") for _ in range(scalers)]
        self.own: dict[str, Numbers] = {"real": [], "fake": [], "critic": [], "maker": []}

    def scaler(self, number: int) -> Any:
        off = torch.amp.GradScaler("cpu", enabled=False)
        return self.scalers[min(number, len(self.scalers) - 1)] if self.scalers else off

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(16, 6) + 1, self.maker(torch.randn(16, 4))

    def judged(self, name: str, x: torch.Tensor, target: float) -> Any:
        loss = functional.binary_cross_entropy_with_logits(self.critic(x), torch.full((16, 1), target))
        self.own[name].append(float(loss.detach()))
        return loss

    def of_both(self, real: torch.Tensor, fake: torch.Tensor) -> Any:
        loss = self.judged("real", real, 1.0) + self.judged("fake", fake.detach(), 0.0)
        self.own["critic"].append(float(loss.detach()))
        return loss


def _on_lines_of_their_own(gan: Gan, step: int) -> None:
    real, fake = gan.batch()
    (critic, maker), first, second = gan.optimizers, gan.scaler(0), gan.scaler(1)
    critic.zero_grad()
    first.scale(gan.of_both(real, fake)).backward()
    first.step(critic)
    if first is not second:
        first.update()
    maker.zero_grad()
    second.scale(gan.judged("maker", fake, 1.0)).backward()
    second.step(maker)
    second.update()


def _update(loss: Any, optimizer: Any, scaler: Any) -> None:
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)


def _through_one_line(gan: Gan, step: int) -> None:
    real, fake = gan.batch()
    for number in range(2):
        loss = gan.of_both(real, fake) if number == 0 else gan.judged("maker", fake, 1.0)
        _update(loss, gan.optimizers[number], gan.scaler(number))
        if number or len(gan.scalers) > 1:
            gan.scaler(number).update()


def _both_before_either_steps(gan: Gan, step: int) -> None:
    real, fake = gan.batch()
    for optimizer in gan.optimizers:
        optimizer.zero_grad()
    for number, loss in enumerate((gan.of_both(real, fake), gan.judged("maker", fake, 1.0))):
        gan.scaler(number).scale(loss).backward()
    for number, optimizer in enumerate(gan.optimizers):
        gan.scaler(number).step(optimizer)
    for scaler in gan.scalers:
        scaler.update()


def _the_critic_more_often(gan: Gan, step: int) -> None:
    real, fake = gan.batch()
    _update(gan.of_both(real, fake), gan.optimizers[0], gan.scaler(0))
    if step % 3 == 2:
        if len(gan.scalers) > 1:
            gan.scaler(0).update()
        _update(gan.judged("maker", fake, 1.0), gan.optimizers[1], gan.scaler(1))
        gan.scaler(1).update()
    else:
        gan.scaler(0).update()


def _real_and_fake_apart(gan: Gan, step: int) -> None:
    real, fake = gan.batch()
    (critic, maker), first, second = gan.optimizers, gan.scaler(0), gan.scaler(1)
    critic.zero_grad()
    first.scale(gan.judged("real", real, 1.0)).backward()
    first.scale(gan.judged("fake", fake.detach(), 0.0)).backward()
    first.step(critic)
    if first is not second:
        first.update()
    maker.zero_grad()
    second.scale(gan.judged("maker", fake, 1.0)).backward()
    second.step(maker)
    second.update()


@pytest.mark.parametrize("scalers", [0, 1, 2])
@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (_on_lines_of_their_own, ("critic", "maker")),
        (_through_one_line, ("critic", "maker")),
        (_both_before_either_steps, ("critic", "maker")),
        (_the_critic_more_often, ("critic", "maker")),
        (_real_and_fake_apart, ("real", "fake", "maker")),
    ],
)
def test_two_losses_are_two_columns_and_never_their_mean(
    turn: Callable[[Gan, int], None], expected: tuple[str, ...], scalers: int, tmp_path: Path
) -> None:
    gan = Gan(scalers)
    run = ammeter.watch([gan.critic, gan.maker], gan.optimizers, gan.scalers or None, dir=tmp_path)
    for step in range(12):
        turn(gan, step)
    rows = recorded_rows(run, tmp_path)
    names = loss_columns(rows)
    assert all(name.startswith("loss@test_several_losses.py:") for name in names), names
    found = [rows.scalar(name)[measured(rows.scalar(name))] for name in names]
    assert len(expected) == len(found)
    for name, column in zip(expected, found, strict=True):
        np.testing.assert_allclose(gan.own[name], column, rtol=1e-5)


def test_two_losses_of_one_optimizer_are_two_columns_also_where_steps_are_short(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run, own, aside = ammeter.watch(model, optimizer, dir=tmp_path), Numbers(), Numbers()
    for step in range(1500):
        x, y = batch(step % 7)
        optimizer.zero_grad()
        one = mean_loss(model(x), y)
        one.backward()
        other = squared_loss(model(x), y)
        other.backward()
        optimizer.step()
        own.append(float(one.detach()))
        aside.append(float(other.detach()))
    rows = recorded_rows(run, tmp_path)
    assert not rows.scalar("calls_followed").all()
    first, second = loss_columns(rows)
    np.testing.assert_allclose(own, rows.scalar(first), rtol=1e-5)
    np.testing.assert_allclose(aside, rows.scalar(second), rtol=1e-5)


def test_backward_on_ever_new_lines_has_a_bounded_number_of_columns(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    x, y = batch(0)
    for step in range(30):
        for number in range(2):
            code = compile("loss.backward()", f"made{step}_{number}.py", "exec")
            exec(code, {"loss": mean_loss(model(x), y)})
        optimizer.step()
        optimizer.zero_grad()
    assert 16 == len(loss_columns(recorded_rows(run, tmp_path)))
