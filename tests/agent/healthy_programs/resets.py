"""Programs that reset gradients in every way that torch permits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.agent.healthy_programs.program import healthy, loss_of, scaler, sgd
from tests.agent.training import Model, watching


@healthy
def model_zero_grad(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for step in range(20):
            model.zero_grad(set_to_none=step % 2 == 0)
            scales.scale(loss_of(model)).backward()
            scales.step(optimizer)
            scales.update()
    return seen


@healthy
def gradients_set_to_none_by_hand(folder: Path) -> Any:
    model = Model()
    optimizer = sgd(model)
    with watching(folder, model, optimizer) as seen:
        for step in range(40):
            for parameter in model.parameters():
                if parameter.grad is None or step % 4 == 0:
                    parameter.grad = None
                elif step % 4 == 1:
                    parameter.grad.zero_()
                elif step % 4 == 2:
                    parameter.grad.data.zero_()
                else:
                    parameter.grad = torch.zeros_like(parameter)
            loss_of(model, None).backward()
            optimizer.step()
    return seen


@healthy
def gradients_zeroed_behind_their_version_in_every_step(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(40):
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.data.zero_()
            scales.scale(loss_of(model)).backward()
            scales.step(optimizer)
            scales.update()
    return seen


@healthy
def a_skip_that_is_zeroed_like_any_other_step(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for step in range(14):
            scales.scale(loss_of(model) * (float("nan") if step in (5, 9) else 1)).backward()
            scales.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scales.step(optimizer)
            scales.update()
            optimizer.zero_grad(set_to_none=step < 7)
    assert 2 == len(seen.events("step.skipped"))
    return seen
