"""The row of the open step: values read so far and transfers still in flight."""

from __future__ import annotations

import time
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from ammeter.tensors.async_copy import Arriving, Transfer
from ammeter.wire.frames import ABSENT_BITS, Schema

ABSENT = np.uint32(ABSENT_BITS).view(np.float32)


_NONE: frozenset[int] = frozenset()


class Row:
    """The values of one step, collected by the probes.

    Attributes:
        scalars: column -> number.
        stats: statistic -> list of (tensor indices, values).
        transfers: probe key -> device-to-host transfers.
        pending: transfers, and other readings of a device, that have not arrived yet.
        stepped: ids of optimizers whose step() was entered.
        skipped: ids of optimizers whose step a scaler skipped on the host.
        fused: ids of optimizers that pass the skip decision to their own kernel.
        scaler_used: ids of optimizers that an enabled scaler unscales or steps.
        clipped: the optimizers whose gradients are being clipped now.
        clip_is_finite: whether torch reported a finite norm for that clipping.
        loss: the sum of all losses of the step, set when the row is finished.
        urgent: the row is written at once instead of in a batch.
        began: end of the previous step, in seconds of perf_counter.
    """

    __slots__ = (
        *("began", "clip_is_finite", "clipped", "events", "fused", "loss", "pending", "raw", "scalars", "scaler_used"),
        *("skipped", "stats", "step", "stepped", "time", "transfers", "urgent"),
    )

    def __init__(self, step: int) -> None:
        self.step = step
        self.time = 0
        self.scalars: dict[str, float] = {}
        self.stats: dict[str, list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]] = {}
        self.transfers: dict[str, list[Transfer]] = {}
        self.pending: list[Arriving] | None = None
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.raw: dict[str, Any] = {}
        self.stepped = self.skipped = self.fused = self.scaler_used = _NONE
        self.clipped: Sequence[Any] = ()
        self.clip_is_finite = True
        self.loss: float | None = None
        self.urgent = False
        self.began = perf_counter()

    def fill(self, stat: str, indices: npt.NDArray[np.int64], numbers: npt.NDArray[Any]) -> None:
        """Stores values of these tensors as float32.

        Finite values beyond the float32 range are clipped to float32's largest number and so stay finite.
        """
        with np.errstate(all="ignore"):
            narrow = numbers.astype(np.float32)
        if not np.isfinite(narrow).all():
            narrow = _fitting(numbers)
        self.stats.setdefault(stat, []).append((indices, narrow))

    def later(self, key: str, transfer: Transfer) -> None:
        """Stores a transfer under a key; the row is finished only after it has arrived."""
        transfers = self.transfers.get(key)
        if transfers is None:
            self.transfers[key] = [transfer]
        else:
            transfers.append(transfer)
        if not transfer.on_host:
            self.wait_for(transfer)

    def wait_for(self, transfer: Arriving) -> None:
        """Delays the row until this transfer has arrived; the caller keeps the transfer itself."""
        if not transfer.on_host:
            self.pending = [*(self.pending or ()), transfer]

    def arrived(self, key: str) -> list[npt.NDArray[np.float32]]:
        return [transfer.array() for transfer in self.transfers.get(key, [])]

    def ready(self) -> bool:
        while self.pending:
            if not self.pending[-1].ready():
                return False
            self.pending.pop()
        return True

    def stamp(self) -> None:
        self.time = time.time_ns()

    def values(self, layout: Layout) -> bytes:
        """Encodes the row for a `steps` frame; columns after the last measured one are omitted.

        A value logged by the program that exceeds float32 becomes infinite, and numpy warns about it.
        """
        values = layout.values(self.scalars, self._reach(layout) if self.stats else 0)
        for stat, parts in self.stats.items():
            first = layout.stats[stat]
            for indices, numbers in parts:
                values[indices + first] = numbers
        return values.tobytes()

    def _reach(self, layout: Layout) -> int:
        """Returns the number of columns up to the last one that may have been measured."""
        last: int = max(layout.stats[stat] for stat in self.stats)
        return last + layout.tensors


class Layout:
    """Column positions of a schema.

    Maps each scalar to its position and each statistic to the position of its first tensor.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.tensors = len(schema.tensors)
        self.scalars = {name: position for position, name in enumerate(schema.scalars)}
        self.empty = np.full(len(schema.scalars), ABSENT, "<f4")
        self.stats = {stat: schema.span(stat).start for stat in schema.stats}

    def values(self, scalars: dict[str, float], reach: int = 0) -> npt.NDArray[np.float32]:
        """Returns float32[max(reach, scalar columns)] with these numbers and ABSENT elsewhere."""
        values = np.full(reach, ABSENT, "<f4") if reach else self.empty.copy()
        positions = self.scalars
        for name, number in scalars.items():
            if name in positions:
                values[positions[name]] = number
        return values


def _fitting(numbers: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    largest = np.finfo(np.float32).max
    fitting = np.where(np.isfinite(numbers), np.clip(numbers, -largest, largest), numbers)
    fitting[np.isnan(fitting)] = np.nan  # a single NaN pattern: another could have the bits of ABSENT
    return fitting.astype(np.float32)
