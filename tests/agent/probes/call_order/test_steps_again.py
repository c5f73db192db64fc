"""An optimizer that steps again on gradients that scaler.step() has used is reported with the line of its step()."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.probes.call_order.mistakes import told
from tests.agent.training import Model, line_of, watching

Loop = Callable[[Any, Any, Any], None]


def backward(model: Any, scaler: Any) -> None:
    scaler.scale(model(torch.randn(8, 12)).square().mean()).backward()


def after_update(model: Any, optimizer: Any, scaler: Any) -> None:
    optimizer.zero_grad()
    backward(model, scaler)
    scaler.step(optimizer)
    scaler.update()
    optimizer.step()  # again


def before_update(model: Any, optimizer: Any, scaler: Any) -> None:
    optimizer.zero_grad()
    backward(model, scaler)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    optimizer.step()  # again
    scaler.update()


def on_a_skipped_step(model: Any, optimizer: Any, scaler: Any) -> None:
    optimizer.zero_grad()
    scaler.scale(model(torch.randn(8, 12)).square().mean() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.step()  # again


@pytest.mark.parametrize(
    ("loop", "again", "step"),
    [(after_update, "applied", 1), (before_update, "applied", 1), (on_a_skipped_step, "skipped", 1)],
)
def test_a_second_step_on_the_same_gradients_is_reported_with_its_line(
    loop: Loop, again: str, step: int, tmp_path: Path
) -> None:
    model, scaler = Model(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with watching(tmp_path, model, optimizer, scaler) as seen:
        for _ in range(2):
            loop(model, optimizer, scaler)
    told(seen, "gradients_not_unscaled", step, line_of(loop, "# again"), again=again, optimizer="SGD")


def by_the_scaler(model: Any, optimizer: Any, scaler: Any) -> None:
    optimizer.zero_grad()
    backward(model, scaler)
    scaler.step(optimizer)
    scaler.update()


def unscaled_and_stepped(model: Any, optimizer: Any, scaler: Any) -> None:
    optimizer.zero_grad()
    backward(model, scaler)
    scaler.unscale_(optimizer)
    optimizer.step()
    scaler.update()


def reset_before(model: Any, optimizer: Any, scaler: Any) -> None:
    by_the_scaler(model, optimizer, scaler)
    optimizer.zero_grad()
    optimizer.step()


def zeroed_before(model: Any, optimizer: Any, scaler: Any) -> None:
    by_the_scaler(model, optimizer, scaler)
    for parameter in model.parameters():
        parameter.grad.data.zero_()
    optimizer.step()


def other_loss_before(model: Any, optimizer: Any, scaler: Any) -> None:
    by_the_scaler(model, optimizer, scaler)
    optimizer.zero_grad()
    torch.autograd.backward(model(torch.randn(8, 12)).square().mean())
    optimizer.step()


@pytest.mark.parametrize("loop", [by_the_scaler, unscaled_and_stepped, reset_before, zeroed_before, other_loss_before])
@pytest.mark.parametrize("is_fused", [False, True])
def test_other_steps_beside_a_scaler_are_no_second_steps(loop: Loop, is_fused: bool, tmp_path: Path) -> None:
    model, scaler = Model(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9, fused=is_fused)
    with watching(tmp_path, model, optimizer, scaler) as seen:
        for _ in range(4):
            loop(model, optimizer, scaler)
    assert "gradients_not_unscaled" not in seen.usage()


def test_a_disabled_scaler_is_no_reason(tmp_path: Path) -> None:
    model, scaler = Model(), torch.amp.GradScaler("cpu", enabled=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with watching(tmp_path, model, optimizer, scaler) as seen:
        for _ in range(4):
            after_update(model, optimizer, scaler)
    assert "gradients_not_unscaled" not in seen.usage()
