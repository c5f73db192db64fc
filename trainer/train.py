"""Trains a small network in float32, bfloat16 or float16: a GPT on the source of Python, or a CNN on images of waves.

    python trainer/train.py --precision fp16 --steps 200
    python trainer/train.py --arch cnn --precision bf16
    torchrun --nproc-per-node 2 trainer/train.py

A plain program that reads from top to bottom. One line of it lets Ammeter watch.
"""

import math
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

import ammeter
import checkpoint
import cnn
import data
import model as gpt
import together
from breaking import Network
from faults import Faults
from options import Options, read_options
from show import Show

WARM_UP = 20  # steps
VALIDATION_BATCHES = 16


@dataclass
class Progress:
    """How far the run is: the part of its state that nothing of torch holds."""

    step: int = 0  # attempts of the optimizer, applied or skipped
    applied: int = 0
    batches: int = 0


@dataclass(frozen=True)
class Summary:
    """What became of the run. The losses are in nats per character or image."""

    steps: int
    applied: int
    train_loss: float  # mean since the last line that was shown
    val_loss: float
    milliseconds: float  # per step
    scale: float | None

    def __str__(self) -> str:
        return (
            f"done: {self.steps} steps, {self.applied} applied, {self.steps - self.applied} skipped, "
            f"{self.milliseconds:.1f} ms per step\n"
            f"train loss {self.train_loss:.4f}, validation loss {self.val_loss:.4f}"
            + (f", final scale {self.scale:g}" if self.scale is not None else "")
        )


def main(arguments: list[str] | None = None) -> Summary:
    options = read_options(arguments)
    rank, ranks = together.join()
    device = torch.device(options.device)
    random.seed(options.seed)
    torch.manual_seed(options.seed)

    # What there is to learn, and what learns it.
    batches, held_back = what_to_learn(options, device)
    model = build_model(options).to(device)
    optimizer = build_optimizer(model, options)
    scheduler = LambdaLR(optimizer, lambda applied: warm_up_then_cosine(applied, options.steps))
    scaler = GradScaler(device.type) if options.precision == "fp16" else None  # only float16 needs a loss scale

    faults = Faults(options.fault, options.fault_step, model, scaler, rank=rank)  # none, unless asked for
    scaler = faults.begin(0)

    network = together.network(model)
    watched = faults.optimizers(optimizer)
    guards = build_guards(options, scheduler)  # none, unless asked for
    run = ammeter.watch(
        network, watched, scaler, name=options.name, project="reference", config=options.recipe(), guards=guards
    )

    # Where an earlier life of this run left off.
    progress = Progress()
    parts: checkpoint.Parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    parts |= {"scaler": scaler} if scaler else {}
    if options.resume and options.checkpoint:
        try:
            progress = Progress(**checkpoint.restore(options.checkpoint, faults.restored(parts), options.recipe()))
        except ValueError as refusal:
            sys.exit(f"train.py: error: {refusal}")
        if progress.step >= options.steps:
            sys.exit(
                f"{options.checkpoint} is at step {progress.step} of {options.steps} already; raise --steps to go on."
            )

    @optimizer.register_step_post_hook  # a scaler that skips does not call step(); asking it for its scale is a sync
    def count_applied(*_: Any) -> None:
        progress.applied += 1

    show = Show(options.steps, progress.step, together.stream(rank))
    show.line(f"{options.name}: {model.size():,} weights on {device}, {batches.about} to learn from")
    first_step, seconds = progress.step, 0.0
    losses: list[Tensor] = []
    train_loss = val_loss = math.nan

    while progress.step < options.steps:
        began = time.perf_counter()
        scaler = faults.begin(progress.step)
        applied_before = progress.applied
        loss = torch.zeros((), device=device)

        for _ in range(options.accumulate):
            inputs, targets = faults.batch(batches.number(progress.batches * ranks + rank))
            with autocast(options, run):
                part = network(inputs, targets) / options.accumulate
            loss += part.detach()
            part = faults.loss(part)
            faults.scaled(scaler.scale(part) if scaler else part, part).backward()  # type: ignore[no-untyped-call]
            progress.batches += 1

        faults.attempt(attempt)(model, optimizer, scaler, options.clip)
        faults.reset(optimizer.zero_grad)()
        if faults.schedule(progress.applied > applied_before):  # a skipped step must not use up the schedule
            scheduler.step()
        progress.step += 1
        run.log(loss=loss, samples=faults.samples(options.batch * options.accumulate))
        seconds += time.perf_counter() - began

        # Now and then: a line, a validation, a checkpoint.
        last = progress.step == options.steps
        losses.append(loss)
        show.bar(progress.step)
        if last or progress.step % options.log_every == 0:
            train_loss = torch.stack(losses).mean().item()
            losses.clear()
            show.numbers(progress.step, numbers(train_loss, progress, scheduler, scaler))
        if last or progress.step % options.eval_every == 0:
            val_loss = validate(model, held_back, options, run)
            run.log(val_loss=val_loss)
            show.line(f"validation loss {val_loss:.4f}")
        if rank == 0 and options.checkpoint and (last or progress.step % options.checkpoint_every == 0):
            faults.save(checkpoint.save)(options.checkpoint, faults.parts(parts), asdict(progress), options.recipe())

    run.close()
    together.leave()
    milliseconds = 1000 * seconds / max(1, progress.step - first_step)
    scale = scaler.get_scale() if scaler else None
    summary = Summary(progress.step, progress.applied, train_loss, val_loss, milliseconds, scale)
    show.line(str(summary))
    return summary


def attempt(model: nn.Module, optimizer: Optimizer, scaler: GradScaler | None, clip: float) -> None:
    """One try of the optimizer, which the scaler skips where a gradient is not finite. The order matters: a limit on
    the norm means the true gradients, so they are unscaled first, and the scale changes last."""
    if scaler:
        scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), clip)
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()


@torch.no_grad()
def validate(model: Network, batches: data.Batches, options: Options, run: ammeter.Run) -> float:
    """Mean loss over what is not trained on, always the same."""
    model.eval()
    losses = []
    for n in range(VALIDATION_BATCHES):
        with autocast(options, run):
            losses.append(model(*batches.number(n)))
    model.train()
    return torch.stack(losses).mean().item()


def autocast(options: Options, run: ammeter.Run) -> torch.autocast:
    """Where the matmuls run in half precision. In float32 it does nothing; a guard may have it be another dtype."""
    half = torch.float16 if options.precision == "fp16" else torch.bfloat16
    return run.autocast(options.device, half, enabled=options.precision != "fp32")


def what_to_learn(options: Options, device: torch.device) -> tuple[data.Batches, data.Batches]:
    """What is trained on, and what is held back."""
    if options.arch == "cnn":
        images = data.Images(options.batch, options.pixels, options.seed, device)
        return images, data.Images(options.batch, options.pixels, options.seed, device, held_back=True)
    text, held_back = data.load()
    windows = data.Windows(text, options.batch, options.context, options.seed, device)
    return windows, data.Windows(held_back, options.batch, options.context, options.seed, device)


def build_model(options: Options) -> Network:
    if options.arch == "cnn":
        return cnn.CNN(cnn.Shape(data.CLASSES, options.layers, options.width, options.dropout))
    return gpt.GPT(
        gpt.Shape(data.VOCABULARY, options.context, options.layers, options.heads, options.width, options.dropout)
    )


def build_optimizer(model: Network, options: Options) -> Optimizer:
    if options.optimizer == "sgd":
        return SGD(model.parameters(), lr=options.lr, momentum=0.9)
    return AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1)


def build_guards(options: Options, scheduler: LambdaLR) -> list[Any]:
    """What may act on the run, because it was asked for."""
    built: dict[str, Callable[[], Any]] = {
        "scale": lambda: ammeter.guards.Scale(),
        "precision": lambda: ammeter.guards.Precision(),
        "checkpoint": lambda: ammeter.guards.Checkpoint(
            every_steps=options.checkpoint_every, parts={"scheduler": scheduler}
        ),
        "stop": lambda: ammeter.guards.Stop(),
    }
    return [built[name]() for name in options.guard]


def warm_up_then_cosine(applied: int, steps: int) -> float:
    """The share of the highest learning rate: up in a straight line, then down to a tenth in half a cosine."""
    if applied < WARM_UP:
        return (applied + 1) / WARM_UP
    through = min(1.0, (applied - WARM_UP) / max(1, steps - WARM_UP))
    return 0.1 + 0.45 * (1 + math.cos(math.pi * through))


def numbers(loss: float, progress: Progress, scheduler: LambdaLR, scaler: GradScaler | None) -> str:
    """One line for a person. Reads the scale, so it waits for the device."""
    skipped = progress.step - progress.applied
    line = f"loss {loss:.4f}  rate {float(scheduler.get_last_lr()[0]):.1e}  skipped {skipped}"
    return line + (f"  scale {scaler.get_scale():g}" if scaler else "")


if __name__ == "__main__":
    try:
        main()
    except ammeter.Stopped as stopped:
        sys.exit(f"train.py: stopped by a guard: {stopped}")
