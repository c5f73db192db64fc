"""Programs that accumulate, divide, add and hand over scaled losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.agent.healthy_programs.program import healthy, loss_of, scaler, sgd
from tests.agent.training import Model, watching


@healthy
def accumulation_over_four_batches(folder: Path) -> Any:
    model, scales = Model(), scaler(growth_interval=2)
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for batch in range(32):
            scales.scale(loss_of(model) / 4).backward()
            if batch % 4 == 3:
                scales.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                scales.step(optimizer)
                scales.update()
                optimizer.zero_grad(set_to_none=False)
    return seen


@healthy
def what_is_scaled_is_divided_summed_and_a_list(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for step in range(12):
            optimizer.zero_grad()
            if step % 4 == 0:
                scaled = scales.scale(loss_of(model))
                (scaled / 4).backward(retain_graph=True)
                (scaled * 0.75).backward()
            elif step % 4 == 1:
                total = torch.zeros(())
                for _ in range(40):
                    total = total + scales.scale(loss_of(model))
                total.backward()  # type: ignore[no-untyped-call]
            elif step % 4 == 2:
                first, second = scales.scale([loss_of(model), loss_of(model)])
                torch.autograd.backward([first, second])
            else:
                torch.stack([scales.scale(loss_of(model)), scales.scale(loss_of(model))]).mean().backward()  # type: ignore[no-untyped-call]
            scales.step(optimizer)
            scales.update()
    return seen


@healthy
def an_iterator_of_scaled_losses(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(6):
            optimizer.zero_grad()
            for loss in scales.scale(loss_of(model) for _ in range(2)):
                loss.backward()
            scales.step(optimizer)
            scales.update()
    return seen


@healthy
def a_model_in_two_halves_with_the_gradient_handed_over(folder: Path) -> Any:
    first, second, scales = torch.nn.Linear(12, 12), torch.nn.Linear(12, 3), scaler()
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=1e-3)
    with watching(folder, [first, second], optimizer, scales) as seen:
        for _ in range(8):
            optimizer.zero_grad()
            between = first(torch.randn(4, 12))
            cut = between.detach().requires_grad_()
            scales.scale(second(cut).square().mean()).backward()
            between.backward(cut.grad)
            scales.step(optimizer)
            scales.update()
    return seen
