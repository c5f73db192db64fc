"""Trains for bench.agent.kills until it is killed, and notes each step in memory of the benchmark.

python -m bench.agent.kills.worker PRECISION LAYERS FILE
"""

from __future__ import annotations

import mmap
import os
import sys
from itertools import count
from statistics import median
from time import perf_counter, process_time

import torch

import ammeter

WIDTH = BATCH = 64
SETTLING_STEPS = 100
"""First steps that are not timed: GradScaler skips some of them."""

TIMED_STEPS = 200
TIMED_LAYERS = 4, 16
"""Depths that are timed; the duration of a step grows linearly with the depth."""

NOTED_SECONDS = 2048
"""Steps whose duration is noted, the newest ones."""

_BEGUN, _COMPLETED, _FAST, _FIRST_SECONDS = range(4)


class Notes:
    """Numbers in a file in memory, each stored whole, that another process reads after a kill.

    A number of a step is stored as step + 1, so that a new file has none.
    """

    def __init__(self, file: int) -> None:
        size = 8 * (_FIRST_SECONDS + NOTED_SECONDS)
        os.ftruncate(file, size)
        memory = memoryview(mmap.mmap(file, size))
        self._integers, self._floats = memory.cast("q"), memory.cast("d")

    def begin(self, step: int) -> None:
        """Notes that the call that completes the step is next."""
        self._integers[_BEGUN] = step + 1

    def complete(self, step: int) -> None:
        """Notes that this call has returned."""
        self._integers[_COMPLETED] = step + 1

    def describe(self, step: int, seconds: float, is_fast: bool) -> None:
        """Notes the duration of a step, and whether Ammeter's fast path is used."""
        self._floats[_FIRST_SECONDS + step % NOTED_SECONDS] = seconds
        self._integers[_FAST] = is_fast

    @property
    def begun(self) -> int:
        return self._integers[_BEGUN] - 1

    @property
    def completed(self) -> int:
        return self._integers[_COMPLETED] - 1

    @property
    def is_fast(self) -> bool:
        return bool(self._integers[_FAST])

    def step_seconds(self) -> list[float]:
        """Returns the noted durations in no particular order."""
        return [seconds for seconds in self._floats[_FIRST_SECONDS:] if seconds]


class Training:
    """A network of linear layers; with a GradScaler in float16."""

    def __init__(self, precision: str, layers: int) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.model = torch.nn.Sequential()
        for _ in range(layers):
            self.model.extend([torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.scaler = torch.amp.GradScaler("cpu") if precision == "fp16" else None
        self._dtype = torch.float16 if precision == "fp16" else torch.bfloat16
        self._inputs, self._targets = torch.randn(BATCH, WIDTH), torch.rand(BATCH, WIDTH)

    def begin_step(self) -> None:
        """All of a step but the call that completes it."""
        self.optimizer.zero_grad()
        with torch.autocast("cpu", self._dtype):
            outputs = self.model(self._inputs)
        loss = (outputs.float() - self._targets).square().mean()
        if self.scaler is None:
            loss.backward()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)

    def complete_step(self) -> None:
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.update()


def layers_for(precision: str, seconds: float) -> int:
    """Returns the depth at which an unwatched step takes about this time."""
    (few, many), (short, long) = TIMED_LAYERS, [_seconds_per_step(precision, layers) for layers in TIMED_LAYERS]
    return max(1, round(few + (seconds - short) * (many - few) / (long - short)))


def _seconds_per_step(precision: str, layers: int) -> float:
    training, times = Training(precision, layers), []
    for _ in range(SETTLING_STEPS + TIMED_STEPS):
        began = process_time()  # wall time depends on other programs
        training.begin_step()
        training.complete_step()
        times.append(process_time() - began)
    return median(times[SETTLING_STEPS:])


def main(precision: str, layers: str, file: str) -> None:
    training, notes = Training(precision, int(layers)), Notes(int(file))
    session = ammeter.watch(training.model, training.optimizer, training.scaler)._session
    if session is None:
        sys.exit("Ammeter did not start; unset AMMETER_DISABLE, and see its warning above")
    began = perf_counter()
    for step in count():
        training.begin_step()
        notes.begin(step)
        training.complete_step()
        notes.complete(step)
        ended = perf_counter()
        notes.describe(step, ended - began, session.fast_path.active)
        began = ended


if __name__ == "__main__":
    main(*sys.argv[1:])
