"""Healthy runs whose course resembles a fault: skipped steps, restarts, pauses, resumed runs."""

from __future__ import annotations

import copy
import itertools
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from bench.zoo.healthy.training import (
    STEPS,
    Context,
    Loop,
    convolutions,
    healthy,
    parts,
    perceptron,
    vectors,
    watched_loop,
)

STALL_SECONDS = 1.5
"""About five hundred steps."""


@healthy("fp16")
def skips_while_the_scale_calibrates(context: Context) -> None:
    watched_loop(context, perceptron(), scale=2.0**32).steps(range(STEPS))


@healthy("fp16")
def growth_and_then_a_backoff(context: Context) -> None:
    loop = watched_loop(context, perceptron(), scale=2.0**18, growth_interval=30)
    loop.loss = lambda output, targets: 8 * nn.functional.cross_entropy(output, targets)
    loop.steps(range(STEPS))


@healthy("fp16", "bf16")
def accumulation_over_four_batches(context: Context) -> None:
    loop = watched_loop(context, convolutions())
    loop.accumulate = 4
    loop.steps(range(STEPS // 2))


@healthy("fp16", "bf16")
def a_learning_rate_that_starts_anew(context: Context) -> None:
    loop = watched_loop(context, perceptron())
    schedule = CosineAnnealingWarmRestarts(loop.optimizer, 30)
    for number in range(STEPS):
        if loop.step(number):
            schedule.step()


@healthy("fp16")
def a_cycle_of_one_learning_rate(context: Context) -> None:
    loop = watched_loop(context, convolutions(), optimizer=SGD)
    schedule = OneCycleLR(loop.optimizer, max_lr=0.2, total_steps=STEPS)
    for number in range(STEPS):
        if loop.step(number):
            schedule.step()


@healthy()
def evaluation_every_so_often(context: Context) -> None:
    loop, held_back = watched_loop(context, convolutions()), vectors(context.seed + 1)
    for number in range(STEPS):
        loop.step(number)
        if number % 25 == 24:
            loop.model.eval()
            with torch.no_grad(), context.autocast():
                losses = [loop.loss(loop.model(x).float(), y) for x, y in map(held_back, range(8))]
            loop.run.log(val_loss=torch.stack(losses).mean())
            loop.model.train()


@healthy("fp16", "fp32")
def data_that_stalls_and_comes_again(context: Context) -> None:
    loop = watched_loop(context, perceptron())
    for number in range(STEPS):
        if number in (60, 100):
            time.sleep(STALL_SECONDS)
        loop.step(number)


@healthy()
def goes_on_from_a_checkpoint(context: Context) -> None:
    context.folder.mkdir(parents=True, exist_ok=True)
    path = context.folder / "state.pt"
    before = Loop(*parts(context, convolutions()))
    before.run = Silent()
    before.steps(range(50))
    save(before, path)
    after = Loop(*parts(context, convolutions()))
    saved = torch.load(path)
    for name, part in whole(after).items():
        part.load_state_dict(saved[name])
    after.watched().steps(range(50, STEPS))


@healthy("fp16", "bf16")
def stops_early_and_says_goodbye(context: Context) -> None:
    loop = watched_loop(context, perceptron())
    for number in itertools.count():
        loop.step(number)
        if number == 70:
            break
    loop.run.close()


@healthy("fp16", "bf16")
def an_average_of_the_weights(context: Context) -> None:
    loop = watched_loop(context, convolutions())
    average = AveragedModel(loop.model, multi_avg_fn=get_ema_multi_avg_fn(0.99))  # type: ignore[no-untyped-call]
    for number in range(STEPS):
        loop.step(number)
        average.update_parameters(loop.model)


@healthy("fp16", "bf16")
def exports_beside_the_checkpoints(context: Context) -> None:
    kept = context.folder / "kept"
    kept.mkdir(parents=True, mode=0o700)
    loop = watched_loop(context, perceptron())
    for number in range(STEPS):
        loop.step(number)
        if number % 40 == 39:
            save(loop, kept / "state.pt")
            torch.save(copy.deepcopy(loop.model).half().state_dict(), kept / "export.pt")


@healthy("fp16", "bf16")
def fine_tuning_of_weights_from_elsewhere(context: Context) -> None:
    context.folder.mkdir(parents=True, exist_ok=True)
    path = context.folder / "pretrained.pt"
    torch.save(convolutions().state_dict(), path)
    model = convolutions()
    model.load_state_dict(torch.load(path))
    watched_loop(context, model).steps(range(STEPS))


@healthy("bf16", "fp32")
def a_fused_optimizer(context: Context) -> None:
    model = perceptron()
    watched_loop(context, model, optimizer=AdamW(model.parameters(), lr=1e-2, fused=True)).steps(range(STEPS))


def save(loop: Loop, path: Path) -> None:
    """Writes a complete checkpoint that only its owner can read."""
    path.touch(0o600)
    torch.save({name: part.state_dict() for name, part in whole(loop).items()}, path)


def whole(loop: Loop) -> dict[str, Any]:
    """The parts that a resumed run needs."""
    named = {"model": loop.model, "optimizer": loop.optimizer, "scaler": loop.scaler}
    return {name: part for name, part in named.items() if part is not None}


class Silent:
    """Replaces the run of an unwatched training."""

    def log(self, **_: object) -> None: ...
