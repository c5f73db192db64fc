"""Programs that train in float32, bfloat16 or float16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.agent.healthy_programs.program import healthy, loss_of, scaled_backward, scaler, sgd
from tests.agent.training import Model, watching


@healthy
def float32(folder: Path) -> Any:
    model = Model()
    optimizer = sgd(model)
    with watching(folder, model, optimizer) as seen:
        for _ in range(12):
            optimizer.zero_grad()
            loss_of(model, None).backward()
            optimizer.step()
    return seen


@healthy
def bfloat16(folder: Path) -> Any:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    with watching(folder, model, optimizer) as seen:
        for _ in range(12):
            optimizer.zero_grad()
            loss_of(model, torch.bfloat16).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return seen


@healthy
def bfloat16_with_a_scaler_that_is_switched_off(folder: Path) -> Any:
    model, scales = Model(), scaler(enabled=False)
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(12):
            optimizer.zero_grad()
            scales.scale(loss_of(model, torch.bfloat16)).backward()
            scales.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scales.step(optimizer)
            scales.update()
    return seen


@healthy
def float16_with_growth_and_clipping(folder: Path) -> Any:
    model, scales = Model(), scaler(growth_interval=3)
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for step in range(16):
            scaled_backward(model, optimizer, scales)
            scales.unscale_(optimizer)
            if step % 2:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            else:
                torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
            scales.step(optimizer)
            scales.update()
    return seen


@healthy
def a_third_network_that_trains_in_float32_beside_it(folder: Path) -> Any:
    model, other, scales = Model(), Model(), scaler()
    optimizer, others = sgd(model), sgd(other)
    with watching(folder, [model, other], [optimizer, others], scales) as seen:
        for _ in range(12):
            optimizer.zero_grad()
            others.zero_grad()
            loss_of(other, None).backward()
            others.step()
            scales.scale(loss_of(model)).backward()
            scales.step(optimizer)
            scales.update()
    return seen


@healthy
def half_of_the_model_is_frozen_and_its_float16_teacher_makes_no_gradients(folder: Path) -> Any:
    model, teacher = Model(), Model().half()
    for parameter in model.first.parameters():
        parameter.requires_grad_(False)
    optimizer = sgd(model)
    with watching(folder, model, optimizer) as seen:
        for _ in range(8):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                wanted = teacher(torch.randn(8, 12).half()).detach().float()
            (loss_of(model, None) + wanted.square().mean()).backward()
            optimizer.step()
    return seen


class Compensated(torch.optim.Optimizer):
    """SGD in bfloat16 that keeps what is rounded away for the next step."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            rest = self.state[parameter].setdefault("kahan_comp", torch.zeros_like(parameter))
            update = -1e-3 * parameter.grad - rest
            before = parameter.clone()
            parameter.add_(update)
            rest.copy_((parameter - before) - update)


@healthy
def bfloat16_weights_with_kahan_summation(folder: Path) -> Any:
    model = torch.nn.Linear(12, 3, dtype=torch.bfloat16)
    optimizer = Compensated(model.parameters())
    with watching(folder, model, optimizer) as seen:
        for _ in range(24):
            optimizer.zero_grad()
            model(torch.randn(8, 12, dtype=torch.bfloat16)).float().square().mean().backward()
            optimizer.step()
    assert {"half-optimizer-state", "lost-updates"}.isdisjoint(seen.findings())
    return seen
