"""The gradients of each optimizer, read once per step, while they are still scaled where a scaler is used."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ammeter import tap
from ammeter.probes.usage import clip_function
from ammeter.stats import cpu, transfer
from ammeter.stats.unseen import unseen
from ammeter.watched import gradients, optimizer_in

if TYPE_CHECKING:
    from ammeter.row import Row
    from ammeter.session import Session

NAMED = 20
"""Non-finite tensors that an event names; their number is always told."""

LARGEST = float(np.finfo(np.float32).max)

TOLD_AGAIN = 100
"""Steps after which the same tensors being non-finite, step after step, is told again."""

COUNTED_STEPS = 10
"""Non-finite steps in a row whose elements are counted exactly; later ones only as the governor allows."""


class Reading:
    """The gradients of one optimizer at one moment. scale: a number that may still be on its way."""

    def __init__(self, indices: list[int], tensors: list[torch.Tensor], scale: transfer.Transfer) -> None:
        self.indices = np.array(indices, np.int64)
        self.tensors = tensors
        self.scale = scale
        self.norms: list[tuple[npt.NDArray[np.int64], transfer.Transfer]] = []


class Gradients:
    name = "gradients"

    def __init__(self, session: Session) -> None:
        self._session = session
        self._bad_rows = 0
        self._told: tuple[list[int], int] = ([], -TOLD_AGAIN)

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        kinds = self._session.watched.scaler_kinds
        return [
            *tap.methods(kinds, "unscale_", before=guard(self._unscaling)),
            tap.function(*clip_function(), before=guard(self._clipping)),
            *tap.methods(kinds, "step", after=guard(self._stepped)),
            register_optimizer_step_pre_hook(guard(self._stepping)),
        ]

    def read(self, optimizer: torch.optim.Optimizer, *, always: bool = False) -> None:
        """Takes the statistics of this optimizer's gradients, once per step. always: whatever the governor says.

        What is known to be skipped is read in any case, and before a clip turns all of it into NaN.
        """
        row, key = self._session.row, id(optimizer)
        asked: dict[int, bool] = row.raw.setdefault("gradients_read", {})
        if asked.get(key):
            return
        allowed = always or (key not in asked and self._session.governor.norms.allows())
        asked[key] = allowed or self._session.watched.overflowed(optimizer)
        if not asked[key]:
            return
        began = perf_counter()
        reading = self._collect(optimizer)
        if reading is None:
            return
        try:
            unseen(lambda: self._take(row, reading, began), reading.tensors)
        finally:
            reading.tensors = []  # the program frees its gradients when it wants to

    def finish(self, row: Row) -> None:
        squares, bad, known = 0.0, [], 0
        for reading in row.raw.get("gradient_readings", ()):
            scale = float(reading.scale.array()[0])
            for indices, arriving in reading.norms:
                scaled = arriving.array().astype(np.float64)
                row.fill("grad.norm", indices, scaled / scale if scale else scaled * np.inf)
                narrow = row.stats["grad.norm"][-1][1].astype(np.float64)
                squares += float(narrow @ narrow)
                known += len(indices)
                if not math.isfinite(float(scaled.sum())):
                    bad += [int(index) for index in indices[~np.isfinite(scaled)]]
        if known:
            row.scalars["grad_norm"] = min(math.sqrt(squares), LARGEST) if squares < math.inf else squares
            self._tell(row, sorted(bad), known)
        self._bad_rows = self._bad_rows + 1 if bad else 0

    def _unscaling(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._read_if_watched(optimizer_in(args, kwargs))

    def _clipping(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The usage probe, which is asked before, has found whose gradients are clipped."""
        for optimizer in self._session.row.clipped:
            self.read(optimizer, always=not self._session.row.clip_is_finite)
        self._session.row.clipped = []

    def _stepping(self, optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
        self._read_if_watched(optimizer)

    def _read_if_watched(self, optimizer: Any) -> None:
        if optimizer in self._session.watched.optimizers:
            self.read(optimizer)

    def _stepped(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        """A skipped step is read whatever the governor said; the non-finite numbers are still in the gradients."""
        optimizer = optimizer_in(args, kwargs)
        if id(optimizer) in self._session.row.skipped:
            self.read(optimizer, always=True)

    def _collect(self, optimizer: torch.optim.Optimizer) -> Reading | None:
        parameters, indices = self._session.watched.parameters(optimizer)
        found = gradients(parameters)
        pairs = [(index, each) for index, each in zip(indices, found, strict=True) if each is not None]
        if not pairs:
            return None
        row = self._session.row
        scaled = row.raw.get("scaled") or id(optimizer) in row.scaler_used
        scaler = self._session.watched.scaling(optimizer) if scaled else None
        scale = transfer.number(1.0) if scaler is None or scaler._scale is None else transfer.of(scaler._scale)
        return Reading([index for index, _ in pairs], [each for _, each in pairs], scale)

    def _take(self, row: Row, reading: Reading, began: float) -> None:
        on_host = all(each.device.type == "cpu" for each in reading.tensors)
        self._norms(row, reading)
        if on_host:
            self._mend_norms(reading)
        self._session.governor.norms.spend(perf_counter() - began)
        if on_host:
            self._on_host(row, reading)

    def _norms(self, row: Row, reading: Reading) -> None:
        on = [each.device for each in reading.tensors]
        for device in set(on):
            chosen = [at for at, each in enumerate(on) if each == device]
            arriving = transfer.of(cpu.norms([reading.tensors[at] for at in chosen]))
            reading.norms.append((reading.indices[chosen], arriving))
            row.later("gradients", arriving)
        row.later("gradients", reading.scale)
        row.raw.setdefault("gradient_readings", []).append(reading)

    def _mend_norms(self, reading: Reading) -> None:
        """On the CPU the norms are here; where float32 squared too far, they are taken again."""
        ((indices, arrived),) = reading.norms
        doubtful = cpu.doubtful(arrived.array())
        if doubtful.size:
            norms = arrived.array().astype(np.float64)
            for at in doubtful:
                norms[at] = cpu.norm(reading.tensors[at])
            reading.norms = [(indices, transfer.Arrived(norms))]

    def _on_host(self, row: Row, reading: Reading) -> None:
        """Counts what is not finite, or reads everything when that is due."""
        bad = np.flatnonzero(~np.isfinite(reading.norms[0][1].array()))
        budget = self._session.governor.full
        if bad.size:
            if self._bad_rows >= COUNTED_STEPS and not budget.allows():
                return
        elif not budget.allows():
            return
        began = perf_counter()
        if bad.size:
            self._count_nonfinite(row, reading, bad)
        else:
            self._read_full(row, reading)
        budget.spend(perf_counter() - began)

    def _count_nonfinite(self, row: Row, reading: Reading, bad: npt.NDArray[np.int64]) -> None:
        counts = np.array([cpu.nonfinite(reading.tensors[at]) for at in bad], np.float32)
        row.fill("grad.nans", reading.indices[bad], counts[:, 0])
        row.fill("grad.infs", reading.indices[bad], counts[:, 1])
        row.scalars["grad_nonfinite"] = row.scalars.get("grad_nonfinite", 0.0) + float(counts.sum())

    def _read_full(self, row: Row, reading: Reading) -> None:
        scale = float(reading.scale.array()[0])
        read = np.array([cpu.full(each) for each in reading.tensors], np.float64)
        absmax = read[:, 0] / np.float64(scale)
        row.fill("grad.absmax", reading.indices, absmax)
        row.fill("grad.zeros", reading.indices, read[:, 1])
        row.fill("grad.subnormals", reading.indices, read[:, 2])
        gridded = ~np.isnan(read[:, 3])
        row.fill("grad.fp16_grid", reading.indices[gridded], read[gridded, 3])
        row.scalars["grad_absmax"] = max(row.scalars.get("grad_absmax", 0.0), min(float(absmax.max()), LARGEST))
        row.scalars.setdefault("grad_nonfinite", 0.0)

    def _tell(self, row: Row, bad: list[int], known: int) -> None:
        if not bad:
            return
        if self._told[0] == bad and row.step - self._told[1] < TOLD_AGAIN and self._bad_rows >= COUNTED_STEPS:
            return
        self._told = (bad, row.step)
        names = self._session.watched.tensors
        read = sorted(int(i) for reading in row.raw["gradient_readings"] for part, _ in reading.norms for i in part)
        tensors = [{"tensor": names[index].name, **_counts(row, index)} for index in bad[:NAMED]]
        row.events.append(
            (
                "gradient.nonfinite",
                {
                    "tensors": tensors,
                    "count": len(bad),
                    "last": names[bad[-1]].name,
                    "finite_after": sum(index > bad[-1] for index in read),
                    "finite": known - len(bad),
                    "scaled": bool(row.raw.get("scaled")),
                },
            )
        )


def _counts(row: Row, index: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for stat, name in (("grad.nans", "nans"), ("grad.infs", "infs")):
        for indices, numbers in row.stats.get(stat, []):
            for at in np.flatnonzero(indices == index):
                found[name] = int(numbers[at])
    return found
