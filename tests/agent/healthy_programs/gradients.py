"""Programs that compute, unscale or change gradients themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.agent.healthy_programs.program import healthy, loss_of, scaled_backward, scaler, sgd
from tests.agent.training import Model, watching


@healthy
def the_penalty_on_scaled_gradients_of_the_amp_examples(folder: Path) -> Any:
    model, scales = torch.nn.Linear(12, 3), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(10):
            optimizer.zero_grad()
            loss = loss_of(model)
            scaled = torch.autograd.grad(outputs=scales.scale(loss), inputs=list(model.parameters()), create_graph=True)
            penalty = torch.stack([(gradient / scales.get_scale()).square().sum() for gradient in scaled]).sum().sqrt()
            scales.scale(loss + penalty).backward()
            scales.step(optimizer)
            scales.update()
    return seen


@healthy
def gradients_put_in_place_by_hand(folder: Path) -> Any:
    model, scales = torch.nn.Linear(12, 3), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(10):
            parameters = list(model.parameters())
            gradients = torch.autograd.grad(scales.scale(loss_of(model)), parameters)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            scales.step(optimizer)
            scales.update()
    return seen


@healthy
def gradients_unscaled_by_hand_before_a_plain_step(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(10):
            scaled_backward(model, optimizer, scales)
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad /= scales.get_scale()
            optimizer.step()
    return seen


@healthy
def unscale_and_a_plain_step(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(10):
            scaled_backward(model, optimizer, scales)
            scales.unscale_(optimizer)
            optimizer.step()
            scales.update()
    return seen


@healthy
def a_penalty_added_to_gradients_that_are_unscaled(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(10):
            scaled_backward(model, optimizer, scales)
            scales.unscale_(optimizer)
            (1e-4 * model.first.weight.square().sum()).backward()  # type: ignore[no-untyped-call]
            scales.step(optimizer)
            scales.update()
    return seen
