"""Programs with averaged, compiled and checkpointed models."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from tests.agent.healthy_programs.program import healthy, loss_of, scaled_step, scaler, sgd
from tests.agent.training import Model, watching


@healthy
def an_average_of_the_model(folder: Path) -> Any:
    model, scales = Model(), scaler()
    average, averaged = copy.deepcopy(model), torch.optim.swa_utils.AveragedModel(model)
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(12):
            scaled_step(model, optimizer, scales)
            averaged.update_parameters(model)
            with torch.no_grad():
                for own, other in zip(average.parameters(), model.parameters(), strict=True):
                    own.lerp_(other, 0.1)
    return seen


@healthy
def a_compiled_model(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    forward = torch.compile(model, backend="eager")
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(6):
            optimizer.zero_grad()
            scales.scale(loss_of(forward)).backward()
            scales.step(optimizer)
            scales.update()
    torch._dynamo.reset()
    return seen


@healthy
def checkpointed_layers(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for step in range(8):
            optimizer.zero_grad()
            x = torch.randn(8, 12, requires_grad=True)
            with torch.autocast("cpu", torch.float16):
                y = checkpoint(model, x, use_reentrant=step % 2 == 0)
            scales.scale(y.float().square().mean()).backward()
            scales.step(optimizer)
            scales.update()
    return seen
