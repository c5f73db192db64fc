"""A program that in some steps multiplies its loss by the loss scale itself has scaled it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.healthy_programs.program import loss_of, scaler
from tests.agent.probes.call_order.mistakes import sgd
from tests.agent.training import Model, watching


def _backward(model: Any, loss: torch.Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def _grad(model: Any, loss: torch.Tensor) -> None:
    parameters = list(model.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient


@pytest.mark.parametrize("differentiate", [_backward, _grad])
@pytest.mark.parametrize("multiplies", [True, False])
def test_only_a_loss_that_nobody_scaled_is_not_scaled(
    differentiate: Callable[[Any, torch.Tensor], None], multiplies: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    scales.scale(torch.ones(()))
    with watching(tmp_path, model, optimizer, scales) as seen:
        for step in range(9):
            optimizer.zero_grad()
            loss = loss_of(model)
            by_hand = loss * scales.get_scale() if multiplies else loss
            differentiate(model, by_hand if step % 4 == 3 else scales.scale(loss))
            scales.unscale_(optimizer)
            scales.step(optimizer)
            scales.update()
    assert ("loss_not_scaled" in seen.usage()) is not multiplies
