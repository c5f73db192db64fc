"""Notes of steps on the fast path, stored packed until they become rows."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ammeter.recording.row import ABSENT
from ammeter.wire.frames import LOSS, Steps

if TYPE_CHECKING:
    from ammeter.recording.losses import Caught
    from ammeter.recording.row import Layout, Row


class FastStep:
    """The notes of one step.

    Attributes:
        seconds, overhead: duration of the step, and the part of it spent in Ammeter.
        time: end of the step, ns since 1970.
        losses: losses passed to scale() or backward().
        passes: forward passes of the model, set if the last one has not run backward yet.
        scale, growth_tracker, after: scaler state before update(), and the scale after it.
        logged: values from run.log.
        row: the row of the step, if it holds other data.
    """

    seconds = overhead = 0.0
    time = 0
    backwards = passes = 0
    scaled = False
    scale: float | None = None
    growth_tracker: float | None = None
    after: float | None = None
    logged: dict[str, float] | None = None
    row: Row | None = None

    def __init__(self) -> None:
        self.losses: list[Caught] = []


COLUMNS = (
    *("step_seconds", "overhead_seconds", "calls_followed", "applied", "skipped", "loss", "micro_batches"),
    *("samples", "tokens", "scale", "growth_tracker", "found_inf"),
)
"""Columns of a step in which the only optimizer stepped and nothing unusual happened."""

_PACKED = struct.Struct(f"<q{len(COLUMNS)}d")
_NAN = math.nan


class Waiting:
    """Packed values of consecutive steps, the first of them `first`.

    Each value takes eight bytes, so that storing them does not evict the program's cache lines.
    """

    def __init__(self, most: int) -> None:
        self._buffer = bytearray(most * _PACKED.size)
        self._said: dict[str, list[tuple[int, float]]] = {}
        self.first = 0
        self.count = 0

    def add(self, note: FastStep, losses: Mapping[str, float], samples: float, tokens: float) -> None:
        """Adds the next step; samples and tokens are 0 if unknown."""
        at, scale, loss = self.count, note.scale, losses.get(LOSS, _NAN)
        scaled = (_NAN, _NAN, _NAN) if scale is None else (scale, note.growth_tracker or 0.0, 0.0)
        _PACKED.pack_into(
            self._buffer,
            at * _PACKED.size,
            *(note.time, note.seconds, note.overhead, 0.0, 1.0, 0.0, loss),
            *(note.backwards or _NAN, samples or _NAN, tokens or _NAN),
            *scaled,
        )
        if len(losses) > (LOSS in losses):
            for name, number in losses.items():
                if name != LOSS:
                    self._said.setdefault(name, []).append((at, number))
        if note.logged:
            for name, number in note.logged.items():
                self._said.setdefault(name, []).append((at, number))
        self.count += 1

    def take(self, layout: Layout) -> list[Steps]:
        """Returns the steps as rows of this layout and empties the buffer."""
        width = _PACKED.size // 8
        numbers = np.frombuffer(self._buffer, "<f8", self.count * width).reshape(-1, width)
        times = numbers[:, 0].view("<i8").tolist()
        with np.errstate(all="ignore"):
            steps = self._rows(numbers[:, 1:], layout)
        data, size, first = steps.tobytes(), steps.itemsize * steps.shape[1], self.first
        self.first, self.count = first + self.count, 0
        self._said.clear()
        return [Steps(first + at, time, data[at * size : (at + 1) * size]) for at, time in enumerate(times)]

    def _rows(self, numbers: npt.NDArray[np.float64], layout: Layout) -> npt.NDArray[np.float32]:
        values = np.tile(layout.empty, (self.count, 1))
        places = np.array([layout.scalars[name] for name in COLUMNS])
        values[:, places] = numbers
        steps, absent = np.isnan(numbers).nonzero()
        values[steps, places[absent]] = ABSENT
        for name, said in self._said.items():
            place = layout.scalars[name]
            for at, number in said:
                values[at, place] = number
        return values
