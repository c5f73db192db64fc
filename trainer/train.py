"""Trains a small network in float32, bfloat16 or float16, on one device or several.

    python trainer/train.py --precision fp16 --accumulate 4
    torchrun --nproc-per-node 2 trainer/train.py --precision bf16 --checkpoint run.pt

One code path serves every precision: autocast and the loss scaler are disabled where a precision
needs none, and then do nothing. Ammeter observes the run by three calls: watch(), log(), close().
"""

import random
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_

import ammeter
import checkpoint
import ddp
from build import build_data, build_model, build_optimizer, build_scheduler
from console import Console, Summary
from options import Options, read_options


class Trainer:
    """One run: the model, the objects that train it, and its progress."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.rank, self.ranks = ddp.setup(options.device)
        self.device = torch.device(options.device)
        random.seed(options.seed)
        torch.manual_seed(options.seed)
        self.training_set, self.validation_set = build_data(options, self.device)
        self.model = build_model(options).to(self.device)
        self.optimizer = build_optimizer(self.model, options)
        self.scheduler = build_scheduler(self.optimizer, options)
        # float16 loses gradients below 6e-8, so it needs a loss scale. bfloat16 has the range of float32.
        self.scaler = GradScaler(self.device.type, enabled=options.precision == "fp16")
        self.progress = checkpoint.Progress()
        # The scaler skips a step by not calling optimizer.step(). A hook counts the calls without a device sync.
        self.optimizer.register_step_post_hook(self.progress.count_applied)
        self.samples_per_step = options.batch * options.accumulate

    def train(self) -> Summary:
        """Runs the steps that are left, with validations and checkpoints in between."""
        self.network = ddp.wrap(self.model)
        self.run = self.watch()
        self.resume()
        console = Console(self)
        while self.progress.step < self.options.steps:
            loss = self.train_step()
            self.run.log(loss=loss, samples=self.samples_per_step)
            console.step(loss)
            last = self.progress.step == self.options.steps
            if last or self.progress.step % self.options.eval_every == 0:
                val_loss = self.validate()
                self.run.log(val_loss=val_loss)
                console.validation(val_loss)
            if last or self.progress.step % self.options.checkpoint_every == 0:
                self.save()
        self.run.close()
        ddp.cleanup()
        return console.summary()

    def watch(self, **settings: Any) -> ammeter.Run:
        """Starts Ammeter, before the first step."""
        settings |= {"name": self.options.name, "project": "reference", "config": self.options.recipe()}
        return ammeter.watch(self.network, self.optimizer, self.scaler, **settings)

    def train_step(self) -> Tensor:
        """Attempts one step of the optimizer. Returns the mean loss of its micro-batches."""
        applied_before = self.progress.applied
        loss = self.accumulate_gradients()
        self.apply_gradients()
        self.optimizer.zero_grad()  # after a skipped step too, or its Inf would stay in the sums
        self.adjust_learning_rate(self.progress.applied > applied_before)
        self.progress.step += 1
        return loss

    def accumulate_gradients(self) -> Tensor:
        """Sums the gradients of all micro-batches, at one loss scale."""
        mean_loss = torch.zeros((), device=self.device)
        for remaining in reversed(range(self.options.accumulate)):
            inputs, targets = self.next_batch()
            # DDP averages gradients inside backward(). One average per step is enough, in the last micro-batch.
            with ddp.sync_gradients(self.network, enabled=remaining == 0):
                with self.autocast():  # forward and loss only: backward() follows the dtypes of the forward pass
                    loss = self.network(inputs, targets) / self.options.accumulate
                self.backward(loss)
            mean_loss += loss.detach()
        return mean_loss

    def autocast(self) -> torch.autocast:
        """Runs matrix products in half precision. The weights stay float32."""
        half = torch.float16 if self.options.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, dtype=half, enabled=self.options.precision != "fp32")

    def backward(self, loss: Tensor) -> None:
        """Multiplies the loss, and thereby every gradient, by the scale, so that small ones survive float16."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def apply_gradients(self) -> None:
        """Clips the gradients and steps the optimizer. The order of the calls matters."""
        self.scaler.unscale_(self.optimizer)  # first, because the limit below is meant for the true norm
        clip_grad_norm_(self.model.parameters(), self.options.clip)
        self.scaler.step(self.optimizer)  # skips the optimizer where unscale_() found Inf or NaN
        self.scaler.update()  # last, once per step: halves the scale after a skip, doubles it after 2000 good steps

    def adjust_learning_rate(self, applied: bool) -> None:
        """Advances the schedule, except after a skipped step, which trained nothing."""
        if applied:
            self.scheduler.step()

    @torch.no_grad()
    def validate(self) -> float:
        """Mean loss over held-back batches, the same ones each time."""
        self.model.eval()
        with self.autocast():
            losses = [self.model(inputs, targets) for inputs, targets in self.validation_set]
        self.model.train()
        return torch.stack(losses).mean().item()

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets. Ranks take turns, so no batch is trained on twice."""
        number = self.progress.batches * self.ranks + self.rank
        self.progress.batches += 1
        return self.training_set.batch(number)

    def parts(self) -> checkpoint.Parts:
        """Everything with a state_dict(). Without the scaler's, a resumed run starts at another scale."""
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "scaler": self.scaler}

    def save(self) -> None:
        if self.options.checkpoint and self.rank == 0:  # all ranks have the same state
            checkpoint.save(self.options.checkpoint, self.parts(), self.progress, self.options)

    def resume(self) -> None:
        if self.options.checkpoint and self.options.resume:
            checkpoint.restore(self.options.checkpoint, self.parts(), self.progress, self.options)


def main(arguments: list[str] | None = None) -> Summary:
    return Trainer(read_options(arguments)).train()


if __name__ == "__main__":
    main()
