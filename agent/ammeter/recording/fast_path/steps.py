"""The numbers of steps on the fast path, stored packed until they become rows."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ammeter.journal.step_ring import COLUMNS
from ammeter.recording.row import ABSENT
from ammeter.recording.scaler_updates import Update
from ammeter.tensors import async_copy
from ammeter.wire.frames import LOSS, Steps

if TYPE_CHECKING:
    from ammeter.recording.losses import BackwardLoss
    from ammeter.recording.row import Layout, Row


class FastStep:
    """The numbers of one step.

    Attributes:
        seconds, overhead: duration of the step, and the part of it spent in Ammeter.
        time: end of the step, ns since 1970.
        losses: losses passed to scale() or backward().
        passes: forward passes of the model, set if the last one has not run backward yet.
        scale, growth_tracker, scale_after: scaler state before update(), and the scale after it.
        logged: values from run.log.
        row: the row of the step, if it has other data.
    """

    seconds = overhead = 0.0
    time = 0
    backwards = passes = 0
    is_scaled = False
    scale: float | None = None
    growth_tracker: float | None = None
    scale_after: float | None = None
    logged: dict[str, float] | None = None
    row: Row | None = None

    def __init__(self) -> None:
        self.losses: list[BackwardLoss] = []

    def copy_to(self, row: Row, *, is_open: bool) -> None:
        """Adds the loss, the scaler state and the logged values to a row, as the probes store them.

        Args:
            is_open: the row is the open one; its scaler updates later.
        """
        for loss in self.losses:
            for value in loss.values:
                row.later("loss", value)
        if self.losses:
            row.raw["losses"] = [*row.raw.get("losses", ()), *self.losses]
        if self.backwards:
            row.raw["micro_batches"] = row.raw.get("micro_batches", 0) + self.backwards
        if self.is_scaled:
            row.raw["scaled"] = True
        if self.scale is not None and not is_open:
            row.raw["updates"] = [self._update(row)]
        for name, logged in (self.logged or {}).items():
            row.later(f"user:{name}", async_copy.number(float(logged)))

    def _update(self, row: Row) -> Update:
        number = async_copy.number
        found_inf = {optimizer: [number(0.0)] for optimizer in row.stepped}
        update = Update(0, number(self.scale or 0.0), number(self.growth_tracker or 0.0), found_inf)
        update.after = update.scale if self.scale_after is None else number(self.scale_after)
        return update


_PACKED = struct.Struct(f"<q{len(COLUMNS)}d")
_NAN = math.nan


class PackedSteps:
    """Packed numbers of consecutive steps, the first of them `first`.

    In these steps the only optimizer stepped and nothing unusual happened, so COLUMNS are all that is measured.
    Each number takes eight bytes, so that storing them does not evict the program's cache lines.
    """

    def __init__(self, max_steps: int) -> None:
        self._buffer = bytearray(max_steps * _PACKED.size)
        self._other_columns: dict[str, list[tuple[int, float]]] = {}
        self.first = 0
        self.count = 0

    def add(self, step: FastStep, losses: Mapping[str, float], samples: float, tokens: float) -> None:
        """Adds the next step; samples and tokens are 0 if unknown."""
        index, scale, loss = self.count, step.scale, losses.get(LOSS, _NAN)
        scaler = (_NAN, _NAN, _NAN) if scale is None else (scale, step.growth_tracker or 0.0, 0.0)
        _PACKED.pack_into(
            self._buffer,
            index * _PACKED.size,
            *(step.time, step.seconds, step.overhead, 0.0, 1.0, 0.0, loss),
            *(step.backwards or _NAN, samples or _NAN, tokens or _NAN),
            *scaler,
        )
        if len(losses) > (LOSS in losses):
            for name, number in losses.items():
                if name != LOSS:
                    self._other_columns.setdefault(name, []).append((index, number))
        if step.logged:
            for name, number in step.logged.items():
                self._other_columns.setdefault(name, []).append((index, number))
        self.count += 1

    def take(self, layout: Layout) -> list[Steps]:
        """Returns the steps as rows of this layout and empties the buffer."""
        width = _PACKED.size // 8
        numbers = np.frombuffer(self._buffer, "<f8", self.count * width).reshape(-1, width)
        times = numbers[:, 0].view("<i8").tolist()
        with np.errstate(all="ignore"):
            rows = self._rows(numbers[:, 1:], layout)
        data, size, first = rows.tobytes(), rows.itemsize * rows.shape[1], self.first
        self.first, self.count = first + self.count, 0
        self._other_columns.clear()
        return [Steps(first + index, time, data[index * size : (index + 1) * size]) for index, time in enumerate(times)]

    def _rows(self, numbers: npt.NDArray[np.float64], layout: Layout) -> npt.NDArray[np.float32]:
        values = np.tile(layout.empty, (self.count, 1))
        positions = np.array([layout.scalars[name] for name in COLUMNS])
        values[:, positions] = numbers
        steps, absent = np.isnan(numbers).nonzero()
        values[steps, positions[absent]] = ABSENT
        for name, entries in self._other_columns.items():
            position = layout.scalars[name]
            for index, number in entries:
                values[index, position] = number
        return values
