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
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

NAMED = 20
"""Tensors that an event names, so that it stays small; their number is always reported."""

AGAIN = 100
"""Steps after which a persistent fault causes another reading of all weights and another report of the same tensors."""


PART = 2**18
"""Elements that are counted at a time, so that counting needs no temporary of the tensor's size."""


class Poisoned:
    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._looked = -AGAIN
        self._troubled = False
        self._finite: int | None = None
        self._told: dict[str, tuple[list[Any], int]] = {}

    def finish(self, row: Row, parts: list[Part]) -> None:
        if row.stats:
            self._sampled(row)
        if parts:
            self._moments(row, parts)
        if "weights_looked" in row.raw:
            for indices, arrived in row.raw["weights_looked"]:
                self._weights(row, [int(index) for index in indices[_not_finite(arrived)]], None)
        norm = row.scalars.get("grad_norm", 0.0)
        if self._troubled or not math.isfinite((row.loss or 0.0) + norm):
            self._watch_out(row)

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
            found = part.bad_moments()
            bad += [(int(part.indices[at]), part.moment, int(found[at])) for at in np.flatnonzero(found)]
        if bad and self._news("moments", [entry[:2] for entry in bad], row.step):
            names = self._session.watched.tensors
            tensors = [f"{names[index].name}.{moment}" for index, moment, _ in bad]
            data = {"tensors": tensors[:NAMED], "count": len(bad), "elements": sum(entry[2] for entry in bad)}
            row.events.append(("moments.nonfinite", data))

    def _weights(self, row: Row, bad: list[int], elements: int | None) -> None:
        if bad and self._news("weights", bad, row.step):
            names = self._session.watched.tensors
            tensors = [names[index].name for index in bad[:NAMED]]
            data = {"tensors": tensors, "count": len(bad), "elements": elements, "last_finite": self._finite}
            row.events.append(("weights.nonfinite", data))
            row.urgent = True

    def _news(self, subject: str, bad: list[Any], step: int) -> bool:
        known, told = self._told.get(subject, ([], -AGAIN))
        if known == bad and step - told < AGAIN:
            return False
        self._told[subject] = bad, step
        return True

    def _watch_out(self, row: Row) -> None:
        loss, norm = row.loss, row.scalars.get("grad_norm")
        if loss is None and norm is None:
            return
        bad_loss = loss is not None and not math.isfinite(loss)
        troubled = bad_loss or (norm is not None and not math.isfinite(norm))
        new = bad_loss and not self._troubled
        if troubled and (new or row.step - self._looked >= AGAIN):
            self._looked = row.step
            self._look(row)
        self._troubled = bad_loss

    def _look(self, row: Row) -> None:
        """Reads every weight, between two steps."""
        present = self._session.row
        with torch.no_grad():
            unseen(lambda: self._read(row if present.step == row.step + 1 else present), ())

    def _read(self, said: Row) -> None:
        places: dict[Any, list[tuple[int, torch.Tensor]]] = defaultdict(list)
        for index, tensor in self._session.watched.alive():
            numbers = readable(tensor)
            if numbers is not None:
                places[numbers.device, numbers.dtype].append((index, numbers))
        here: list[tuple[int, int]] = []
        for (device, _), several in places.items():
            arriving = async_copy.of(_norms([tensor for _, tensor in several]))
            if device.type == "cpu":
                here += [(several[at][0], _nonfinite(several[at][1])) for at in np.flatnonzero(_not_finite(arriving))]
            else:
                self._await([index for index, _ in several], arriving)
        bad = sorted((index, count) for index, count in here if count)
        self._weights(said, [index for index, _ in bad], sum(count for _, count in bad))

    def _await(self, indices: list[int], arriving: async_copy.Transfer) -> None:
        row = self._session.row
        row.raw.setdefault("weights_looked", []).append((np.array(indices, np.int64), arriving))
        row.later("weights", arriving)


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
    parts = torch.split(tensor.reshape(-1), PART)
    return sum(part.numel() - int(torch.isfinite(part).sum()) for part in parts)
