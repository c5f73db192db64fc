"""Programs that train two networks against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.agent.healthy_programs.program import healthy, scaler, sgd
from tests.agent.training import Model, watching


def gan(folder: Path, scalers: int, *, detach: bool, updates: int, by_hand: bool = False) -> Any:
    maker, judge = torch.nn.Linear(6, 12), Model()
    scales = [scaler(growth_interval=5) for _ in range(scalers)]
    first, last = scales[0], scales[-1]
    makes, judges = torch.optim.Adam(maker.parameters(), lr=1e-4), sgd(judge)

    def reset(optimizer: Any) -> None:
        if not by_hand:
            optimizer.zero_grad()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.zero_()

    with watching(folder, [maker, judge], [makes, judges], scales) as seen:
        for _ in range(30):
            made = maker(torch.randn(8, 6))
            reset(judges)
            with torch.autocast("cpu", torch.float16):
                loss = judge(made.detach() if detach else made).float().square().mean()
            first.scale(loss).backward(retain_graph=not detach)
            first.step(judges)
            if updates == 2 and scalers == 1:
                first.update()
            reset(makes)
            with torch.autocast("cpu", torch.float16):
                fooled = judge(made).float().mean()
            last.scale(fooled).backward()
            last.step(makes)
            for gan_scaler in scales:
                gan_scaler.update()
    return seen


@healthy
def a_gan_under_one_scaler(folder: Path) -> Any:
    return gan(folder, 1, detach=True, updates=1)


@healthy
def a_gan_whose_gradients_are_zeroed_by_hand(folder: Path) -> Any:
    return gan(folder, 1, detach=False, updates=1, by_hand=True)


@healthy
def a_gan_with_an_update_for_each_half(folder: Path) -> Any:
    return gan(folder, 1, detach=False, updates=2)


@healthy
def a_gan_under_two_scalers(folder: Path) -> Any:
    return gan(folder, 2, detach=True, updates=1)


@healthy
def a_gan_in_float32(folder: Path) -> Any:
    maker, judge = torch.nn.Linear(6, 12), Model()
    makes, judges = sgd(maker), sgd(judge)
    with watching(folder, [maker, judge], [makes, judges]) as seen:
        for _ in range(20):
            judges.zero_grad()
            judge(maker(torch.randn(8, 6)).detach()).square().mean().backward()
            judges.step()
            makes.zero_grad()
            judge(maker(torch.randn(8, 6))).mean().backward()
            makes.step()
    return seen


@healthy
def a_critic_with_a_gradient_penalty_whose_maker_steps_every_other_time(folder: Path) -> Any:
    maker, judge, scales = torch.nn.Linear(6, 12), torch.nn.Linear(12, 1), scaler(growth_interval=4)
    makes, judges = sgd(maker), sgd(judge)
    with watching(folder, [maker, judge], [makes, judges], scales) as seen:
        for step in range(20):
            judges.zero_grad()
            x = maker(torch.randn(8, 6)).detach().requires_grad_()
            score = judge(x).square().mean()
            (slope,) = torch.autograd.grad(scales.scale(score), x, create_graph=True)
            penalty = (slope / scales.get_scale()).norm()
            scales.scale(score + penalty).backward()
            scales.step(judges)
            if step % 2:
                makes.zero_grad()
                scales.scale(judge(maker(torch.randn(8, 6))).mean()).backward()
                scales.step(makes)
            scales.update()
    return seen
