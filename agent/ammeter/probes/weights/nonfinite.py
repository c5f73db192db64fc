"""Reports NaN and Inf in the weights or in the optimizer's moments.

A NaN in a weight makes the loss NaN at once, so a non-finite loss or norm starts a reading of all weights instead of
slices.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from ammeter.probes.weights.updates import Part
from ammeter.tensors import async_copy
from ammeter.tensors.hidden_reads import unseen
from ammeter.tensors.slices import readable

if TYPE_CHECKING:
    from ammeter.probes.weights.buffers import Buffers
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

MAX_NAMED_TENSORS = 20
"""Tensors that an event names, so that it stays small; their number is always reported."""

REPEAT_STEPS = 100
"""Steps after which a persistent fault causes another reading of all weights and another report of the same tensors."""


CHUNK_ELEMENTS = 2**18
"""Elements that are counted at a time, so that counting needs no temporary of the tensor's size."""


class NonfiniteWeights:
    def __init__(self, session: ProbeContext, buffers: Buffers) -> None:
        self._session = session
        self._buffers = buffers
        self._last_reading = -REPEAT_STEPS
        self._loss_was_bad = False
        self._finite: int | None = None
        self._reported: dict[str, tuple[list[Any], int]] = {}

    def finish(self, row: Row, parts: list[Part]) -> None:
        if row.stats:
            self._sampled(row)
        if parts:
            self._moments(row, parts)
        if "weights_looked" in row.raw:
            for indices, arrived in row.raw["weights_looked"]:
                self._weights(row, [int(index) for index in indices[_not_finite(arrived)]], None)
        norm = row.scalars.get("grad_norm", 0.0)
        if self._loss_was_bad or not math.isfinite((row.loss or 0.0) + norm):
            self._read_if_bad(row)

    def _sampled(self, row: Row) -> None:
        bad, elements = [], 0
        for indices, numbers in row.stats.get("weight.nonfinite", ()):
            bad += [int(index) for index in indices[numbers > 0]]
            elements += int(numbers.sum())
        if bad:
            self._weights(row, sorted(bad), elements)
        elif "weight.nonfinite" in row.stats:
            self._finite = row.step

    def _moments(self, row: Row, parts: list[Part]) -> None:
        bad: list[tuple[int, str, int]] = []
        for part in parts:
            counts = part.bad_moments()
            bad += [(int(part.indices[at]), part.moment, int(counts[at])) for at in np.flatnonzero(counts)]
        if bad and self._is_new("moments", [entry[:2] for entry in bad], row.step):
            names = self._session.watched.tensors
            tensors = [f"{names[index].name}.{moment}" for index, moment, _ in bad]
            elements = sum(count for _, _, count in bad)
            data = {"tensors": tensors[:MAX_NAMED_TENSORS], "count": len(bad), "elements": elements}
            row.events.append(("moments.nonfinite", data))

    def _weights(self, row: Row, bad: list[int], elements: int | None) -> None:
        if bad and self._is_new("weights", bad, row.step):
            names = self._session.watched.tensors
            tensors = [names[index].name for index in bad[:MAX_NAMED_TENSORS]]
            data = {"tensors": tensors, "count": len(bad), "elements": elements, "last_finite": self._finite}
            row.events.append(("weights.nonfinite", data))
            row.urgent = True

    def _is_new(self, subject: str, bad: list[Any], step: int) -> bool:
        known, step_reported = self._reported.get(subject, ([], -REPEAT_STEPS))
        if known == bad and step - step_reported < REPEAT_STEPS:
            return False
        self._reported[subject] = bad, step
        return True

    def _read_if_bad(self, row: Row) -> None:
        loss, norm = row.loss, row.scalars.get("grad_norm")
        if loss is None and norm is None:
            return
        bad_loss = loss is not None and not math.isfinite(loss)
        is_bad = bad_loss or (norm is not None and not math.isfinite(norm))
        new = bad_loss and not self._loss_was_bad
        if is_bad and (new or row.step - self._last_reading >= REPEAT_STEPS):
            self._last_reading = row.step
            self._read_all(row)
        self._loss_was_bad = bad_loss

    def _read_all(self, row: Row) -> None:
        """Reads every weight and buffer, between two steps."""
        present = self._session.row
        target = row if present.step == row.step + 1 else present
        with torch.no_grad():
            unseen(lambda: self._read(target), ())
            unseen(lambda: self._buffers.read(target), ())

    def _read(self, row: Row) -> None:
        places: dict[Any, list[tuple[int, torch.Tensor]]] = defaultdict(list)
        for index, tensor in self._session.watched.alive():
            numbers = readable(tensor)
            if numbers is not None:
                places[numbers.device, numbers.dtype].append((index, numbers))
        counts: list[tuple[int, int]] = []
        for (device, _), tensors in places.items():
            transfer = async_copy.of(_norms([tensor for _, tensor in tensors]))
            if device.type == "cpu":
                counts += [(tensors[at][0], _nonfinite(tensors[at][1])) for at in np.flatnonzero(_not_finite(transfer))]
            else:
                self._await([index for index, _ in tensors], transfer)
        bad = sorted((index, count) for index, count in counts if count)
        self._weights(row, [index for index, _ in bad], sum(count for _, count in bad))

    def _await(self, indices: list[int], transfer: async_copy.Transfer) -> None:
        row = self._session.row
        row.raw.setdefault("weights_looked", []).append((np.array(indices, np.int64), transfer))
        row.later("weights", transfer)


def _norms(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The L2 norms of n tensors: [n], non-finite for each tensor with a non-finite element.

    A norm is also infinite if the squares of finite elements exceed the range of float32.
    """
    wide = torch.float64 if tensors[0].dtype is torch.float64 else torch.float32
    return torch.stack(torch._foreach_norm(list(tensors), 2, dtype=wide))


def _not_finite(arrived: async_copy.Transfer) -> npt.NDArray[np.bool_]:
    return ~np.isfinite(arrived.array())


def _nonfinite(tensor: torch.Tensor) -> int:
    """The number of NaN and Inf elements of a tensor on the CPU."""
    parts = torch.split(tensor.reshape(-1), CHUNK_ELEMENTS)
    return sum(part.numel() - int(torch.isfinite(part).sum()) for part in parts)
