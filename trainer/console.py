"""Output for a person: a progress bar on a terminal, plain lines in a pipe."""

import io
import math
import shutil
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

import torch
from torch import Tensor

if TYPE_CHECKING:
    from train import Trainer

BAR_CHARS = 24


@dataclass(frozen=True)
class Summary:
    """Result of a run. Losses are in nats per character or image."""

    steps: int
    applied: int
    train_loss: float  # mean since the last line of numbers
    val_loss: float
    milliseconds: float  # per step, without validation
    scale: float | None

    def __str__(self) -> str:
        return (
            f"done: {self.steps} steps, {self.applied} applied, {self.steps - self.applied} skipped, "
            f"{self.milliseconds:.1f} ms per step\n"
            f"train loss {self.train_loss:.4f}, validation loss {self.val_loss:.4f}"
            + (f", final scale {self.scale:g}" if self.scale is not None else "")
        )


class Console:
    """Shows the progress of a trainer, on rank 0 only.

    Reading a loss or a scale waits for the device, so that happens once in `--log-every` steps.
    """

    def __init__(self, trainer: "Trainer") -> None:
        self.trainer, self.options = trainer, trainer.options
        self.first_step = trainer.progress.step
        self.bar = ProgressBar(self.options.steps, self.first_step, sys.stdout if trainer.rank == 0 else io.StringIO())
        about = f"{trainer.model.size():,} weights on {trainer.device}, {trainer.training_set.about} to learn from"
        self.bar.line(f"{self.options.name}: {about}")
        self.losses: list[Tensor] = []
        self.train_loss = self.val_loss = math.nan
        self.seconds, self.step_began = 0.0, time.perf_counter()

    def step(self, loss: Tensor) -> None:
        """Moves the bar after a step; shows numbers now and then."""
        self.seconds += time.perf_counter() - self.step_began
        self.losses.append(loss)
        step = self.trainer.progress.step
        self.bar.move(step)
        if step % self.options.log_every == 0 or step == self.options.steps:
            self.train_loss = torch.stack(self.losses).mean().item()
            self.losses.clear()
            self.bar.numbers(step, self._numbers())
        self.step_began = time.perf_counter()

    def validation(self, loss: float) -> None:
        self.val_loss = loss
        self.bar.line(f"validation loss {loss:.4f}")
        self.step_began = time.perf_counter()

    def summary(self) -> Summary:
        """Shows the result of the run, and returns it."""
        progress = self.trainer.progress
        milliseconds = 1000 * self.seconds / max(1, progress.step - self.first_step)
        summary = Summary(progress.step, progress.applied, self.train_loss, self.val_loss, milliseconds, self._scale())
        self.bar.line(str(summary))
        return summary

    def _numbers(self) -> str:
        progress = self.trainer.progress
        rate, scale = float(self.trainer.scheduler.get_last_lr()[0]), self._scale()
        line = f"loss {self.train_loss:.4f}  rate {rate:.1e}  skipped {progress.step - progress.applied}"
        return line if scale is None else f"{line}  scale {scale:g}"

    def _scale(self) -> float | None:
        return self.trainer.scaler.get_scale() if self.trainer.scaler.is_enabled() else None


class ProgressBar:
    """One moving line below the lines that stay."""

    def __init__(self, steps: int, done: int, stream: TextIO) -> None:
        self.stream, self.is_terminal = stream, stream.isatty()
        self.steps, self.first_step, self.began = steps, done, time.perf_counter()
        self.text = ""

    def line(self, text: str) -> None:
        """Writes a line that stays."""
        if self.is_terminal:
            self.stream.write("\r\033[K")
        self.stream.write(text + "\n")
        self.stream.flush()

    def move(self, done: int) -> None:
        """Redraws the bar, where there is a terminal."""
        if not self.is_terminal:
            return
        left = (self.steps - done) * (time.perf_counter() - self.began) / max(1, done - self.first_step)
        full = BAR_CHARS * done // self.steps
        line = f"{'█' * full}{'·' * (BAR_CHARS - full)} {done}/{self.steps}  {self.text}  {left:.0f} s left"
        self.stream.write("\r\033[K" + line[: shutil.get_terminal_size().columns - 1])
        self.stream.flush()

    def numbers(self, done: int, text: str) -> None:
        """Shows numbers beside the bar, or as a line where there is no terminal."""
        self.text = text
        if not self.is_terminal:
            self.line(f"step {done:>{len(str(self.steps))}}/{self.steps}  {text}")
