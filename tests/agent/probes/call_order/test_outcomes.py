"""Schedules that run ahead of skipped steps, and steps that only some optimizers took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.training import Model, line_of, watching

schedulers = torch.optim.lr_scheduler

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def train(model: Any, optimizer: Any, scales: Any, schedule: Any, skips: set[int], steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            output = model(torch.randn(8, 12))
        scales.scale(output.float().square().mean() * (float("inf") if step in skips else 1)).backward()
        scales.step(optimizer)
        scales.update()
        schedule.step()


SCHEDULES: list[Any] = [
    lambda optimizer: schedulers.OneCycleLR(optimizer, 1e-3, total_steps=100),
    lambda optimizer: schedulers.LambdaLR(optimizer, lambda step: 1.0),
    lambda optimizer: schedulers.CosineAnnealingWarmRestarts(optimizer, 10),
    lambda optimizer: schedulers.SequentialLR(
        optimizer, [schedulers.LinearLR(optimizer), schedulers.StepLR(optimizer, 9)], [5]
    ),
    lambda optimizer: schedulers.ChainedScheduler([schedulers.LinearLR(optimizer), schedulers.StepLR(optimizer, 9)]),
]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=["OneCycle", "Lambda", "Restarts", "Sequential", "Chained"])
def test_a_schedule_that_counts_skipped_steps_is_told_with_its_counts(
    schedule: Any, fused: bool, tmp_path: Path
) -> None:
    model, scales = Model(), torch.amp.GradScaler("cpu", init_scale=2.0**14)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    moves = schedule(optimizer)
    skips = {0, 1, 7, 9, 10, 12, 15, 16}
    with watching(tmp_path, model, optimizer, scales) as seen:
        train(model, optimizer, scales, moves, skips, 20)
    told = [
        (event.data["last"], event.data["skipped"], event.data["scheduled"])
        for event in seen.events("usage.scheduler_ahead")
    ]
    assert [(7, 1, 8), (9, 2, 10), (12, 4, 13)] == told
    data = seen.usage()["scheduler_ahead"]
    assert ("AdamW of first.weight", 5) == (data["optimizer"], data["applied"])
    assert type(moves).__name__ == data["scheduler"]
    assert data["caller"].endswith(line_of(train, "schedule.step"))
    assert ["scheduler_ahead"] == list(seen.usage())


def test_a_schedule_before_the_step_is_counted_by_the_step_that_follows(tmp_path: Path) -> None:
    model, scales = Model(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    schedule = schedulers.StepLR(optimizer, 100)
    with watching(tmp_path, model, optimizer, scales) as seen:
        for step in range(12):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 12)).square().mean() * (float("inf") if step in (5, 6) else 1)
            scales.scale(loss).backward()
            schedule.step()
            scales.step(optimizer)
            scales.update()
    assert [1, 2] == [event.data["skipped"] for event in seen.events("usage.scheduler_ahead")]


def test_a_schedule_that_waits_for_the_step_is_not_told(tmp_path: Path) -> None:
    model, scales = Model(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    schedule = schedulers.StepLR(optimizer, 100)
    with watching(tmp_path, model, optimizer, scales) as seen:
        for step in range(12):
            before = scales.get_scale()
            train(model, optimizer, scales, Nothing(), {0} if step in (5, 6) else set(), 1)
            if scales.get_scale() >= before:
                schedule.step()
    assert {} == seen.usage()


class Nothing:
    def step(self) -> None:
        """No schedule."""


def lopsided(tmp_path: Path, bad: set[int], steps: int = 12, scale: float = 2.0**10) -> Any:
    first, second, scales = Model(), Model(), torch.amp.GradScaler("cpu", init_scale=scale)
    one, other = torch.optim.SGD(first.parameters(), lr=1e-4), torch.optim.AdamW(second.parameters(), lr=1e-4)
    with watching(tmp_path, [first, second], [one, other], scales) as seen:
        for step in range(steps):
            one.zero_grad()
            other.zero_grad()
            x = torch.randn(8, 12)
            scales.scale(first(x).square().mean()).backward()
            scales.scale(second(x).square().mean() * (float("inf") if step in bad else 1)).backward()
            scales.step(one)
            scales.step(other)
            scales.update()
    return seen


def test_a_step_that_only_one_of_two_optimizers_took_is_told(tmp_path: Path) -> None:
    seen = lopsided(tmp_path, {4, 6, 8})
    emitted = [(event.step, event.data["times"], event.data["scale"]) for event in seen.events("usage.lopsided_step")]
    assert [(4, 1, 1024.0), (6, 2, 512.0)] == emitted
    data = seen.usage()["lopsided_step"]
    assert (["AdamW of model1.first.weight"], ["SGD of model0.first.weight"]) == (data["skipped"], data["applied"])


@pytest.mark.parametrize(("skipped", "counts"), [(15, []), (18, [(18, 18, 19)])])
def test_many_moves_before_the_first_applied_step_are_told(skipped: int, counts: list[Any], tmp_path: Path) -> None:
    model, scales = Model(), torch.amp.GradScaler("cpu", init_scale=2.0**24)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    moves = schedulers.LambdaLR(optimizer, lambda step: 1.0)
    with watching(tmp_path, model, optimizer, scales) as seen:
        train(model, optimizer, scales, moves, set(range(skipped)), 24)
    told = [
        (event.step, event.data["skipped"], event.data["scheduled"]) for event in seen.events("usage.scheduler_ahead")
    ]
    assert counts == told


def test_an_optimizer_whose_scale_still_calibrates_is_not_told(tmp_path: Path) -> None:
    assert {} == lopsided(tmp_path, {0, 1, 2}).usage()


def test_two_optimizers_that_skip_together_are_not_told(tmp_path: Path) -> None:
    model, scales = Model(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    parameters = list(model.parameters())
    optimizers = [torch.optim.SGD(parameters[:4], lr=1e-4), torch.optim.SGD(parameters[4:], lr=1e-4)]
    with watching(tmp_path, model, optimizers, scales) as seen:
        for step in range(8):
            model.zero_grad()
            loss: Any = model(torch.randn(8, 12)).square().mean() * (float("inf") if step == 5 else 1)
            scales.scale(loss).backward()
            for optimizer in optimizers:
                scales.step(optimizer)
            scales.update()
    assert 1 == len(seen.events("step.skipped"))
    assert {} == seen.usage()
