"""Healthy runs whose course is of the kinds that watchers take for trouble: skips, restarts, pauses, second lives."""

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

from bench.zoo.healthy.training import STEPS, Here, Loop, convolutions, healthy, parts, perceptron, usual, vectors

STALL_SECONDS = 1.5
"""Some five hundred steps."""


@healthy("fp16")
def skips_while_the_scale_calibrates(here: Here) -> None:
    usual(here, perceptron(), scale=2.0**32).steps(range(STEPS))


@healthy("fp16")
def growth_and_then_a_backoff(here: Here) -> None:
    loop = usual(here, perceptron(), scale=2.0**18, growth_interval=30)
    loop.loss = lambda output, targets: 8 * nn.functional.cross_entropy(output, targets)
    loop.steps(range(STEPS))


@healthy("fp16", "bf16")
def accumulation_over_four_batches(here: Here) -> None:
    loop = usual(here, convolutions())
    loop.accumulate = 4
    loop.steps(range(STEPS // 2))


@healthy("fp16", "bf16")
def a_learning_rate_that_starts_anew(here: Here) -> None:
    loop = usual(here, perceptron())
    schedule = CosineAnnealingWarmRestarts(loop.optimizer, 30)
    for number in range(STEPS):
        if loop.step(number):
            schedule.step()


@healthy("fp16")
def a_cycle_of_one_learning_rate(here: Here) -> None:
    loop = usual(here, convolutions(), optimizer=SGD)
    schedule = OneCycleLR(loop.optimizer, max_lr=0.2, total_steps=STEPS)
    for number in range(STEPS):
        if loop.step(number):
            schedule.step()


@healthy()
def evaluation_every_so_often(here: Here) -> None:
    loop, held_back = usual(here, convolutions()), vectors(here.seed + 1)
    for number in range(STEPS):
        loop.step(number)
        if number % 25 == 24:
            loop.model.eval()
            with torch.no_grad(), here.autocast():
                losses = [loop.loss(loop.model(x).float(), y) for x, y in map(held_back, range(8))]
            loop.run.log(val_loss=torch.stack(losses).mean())
            loop.model.train()


@healthy("fp16", "fp32")
def data_that_stalls_and_comes_again(here: Here) -> None:
    loop = usual(here, perceptron())
    for number in range(STEPS):
        if number in (60, 100):
            time.sleep(STALL_SECONDS)
        loop.step(number)


@healthy()
def goes_on_from_a_checkpoint(here: Here) -> None:
    here.folder.mkdir(parents=True, exist_ok=True)
    path = here.folder / "state.pt"
    before = Loop(*parts(here, convolutions()))
    before.run = Silent()
    before.steps(range(50))
    save(before, path)
    after = Loop(*parts(here, convolutions()))
    saved = torch.load(path)
    for name, part in whole(after).items():
        part.load_state_dict(saved[name])
    after.watched().steps(range(50, STEPS))


@healthy("fp16", "bf16")
def stops_early_and_says_goodbye(here: Here) -> None:
    loop = usual(here, perceptron())
    for number in itertools.count():
        loop.step(number)
        if number == 70:
            break
    loop.run.close()


@healthy("fp16", "bf16")
def an_average_of_the_weights(here: Here) -> None:
    loop = usual(here, convolutions())
    average = AveragedModel(loop.model, multi_avg_fn=get_ema_multi_avg_fn(0.99))  # type: ignore[no-untyped-call]
    for number in range(STEPS):
        loop.step(number)
        average.update_parameters(loop.model)


@healthy("fp16", "bf16")
def exports_beside_the_checkpoints(here: Here) -> None:
    kept = here.folder / "kept"
    kept.mkdir(parents=True, mode=0o700)
    loop = usual(here, perceptron())
    for number in range(STEPS):
        loop.step(number)
        if number % 40 == 39:
            save(loop, kept / "state.pt")
            torch.save(copy.deepcopy(loop.model).half().state_dict(), kept / "export.pt")


@healthy("fp16", "bf16")
def fine_tuning_of_weights_from_elsewhere(here: Here) -> None:
    here.folder.mkdir(parents=True, exist_ok=True)
    path = here.folder / "pretrained.pt"
    torch.save(convolutions().state_dict(), path)
    model = convolutions()
    model.load_state_dict(torch.load(path))
    usual(here, model).steps(range(STEPS))


@healthy("bf16", "fp32")
def a_fused_optimizer(here: Here) -> None:
    model = perceptron()
    usual(here, model, optimizer=AdamW(model.parameters(), lr=1e-2, fused=True)).steps(range(STEPS))


def save(loop: Loop, path: Path) -> None:
    """A complete checkpoint that only its owner can read."""
    path.touch(0o600)
    torch.save({name: part.state_dict() for name, part in whole(loop).items()}, path)


def whole(loop: Loop) -> dict[str, Any]:
    """What a run needs to go on."""
    named = {"model": loop.model, "optimizer": loop.optimizer, "scaler": loop.scaler}
    return {name: part for name, part in named.items() if part is not None}


class Silent:
    """For a life that nobody watches."""

    def log(self, **_: object) -> None: ...
