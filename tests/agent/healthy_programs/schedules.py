"""Programs with learning-rate schedules and skipped steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.agent.healthy_programs.program import healthy, loss_of, scaler, sgd
from tests.agent.training import Model, watching


@healthy
def a_schedule_for_each_step_with_a_scale_that_calibrates(folder: Path) -> Any:
    model, scales = Model(), scaler(2.0**24)
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=40)
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(30):
            optimizer.zero_grad()
            scales.scale(loss_of(model) * 100).backward()
            scales.step(optimizer)
            scales.update()
            schedule.step()
    assert 2 < len(seen.events("step.skipped"))
    return seen


@healthy
def a_schedule_for_each_epoch_with_a_skip_in_it(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [torch.optim.lr_scheduler.LinearLR(optimizer), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)],
        [2],
    )
    with watching(folder, model, optimizer, scales) as seen:
        for step in range(30):
            optimizer.zero_grad()
            scales.scale(loss_of(model) * (float("inf") if step == 17 else 1)).backward()
            scales.step(optimizer)
            scales.update()
            if step % 5 == 4:
                schedule.step()
    assert 1 == len(seen.events("step.skipped"))
    return seen


@healthy
def a_plateau_schedule_after_each_evaluation(folder: Path) -> Any:
    model = Model()
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    with watching(folder, model, optimizer) as seen:
        for step in range(20):
            optimizer.zero_grad()
            loss_of(model, None).backward()
            optimizer.step()
            if step % 4 == 3:
                model.eval()
                with torch.no_grad():
                    schedule.step(loss_of(model, None))
                model.train()
    return seen
