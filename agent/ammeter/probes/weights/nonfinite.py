"""Reports NaN and Inf in the weights or in the optimizer's moments.

A NaN in a weight makes the loss NaN at once, so a non-finite loss or norm starts a reading of all weights instead of
slices.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
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


MAX_BAD_READINGS = 50
"""Readings of all weights in a run that tell whether gradients with NaN or Inf reached the weights."""

EVERYWHERE = 0.02
"""Share of a weight from which a part of it is met in each turn: the runs of elements that are read lie every 256th of
it."""

WHOLE = -1
"""Turn of a weight that is small enough to be read whole."""

MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg", "grad_avg", "sum")
"""Names of the moments of torch's optimizers. An optimizer of the program may begin another one with Inf, such as a
minimum."""

CHUNK_ELEMENTS = 2**18
"""Elements that are counted at a time, so that counting needs no temporary of the tensor's size."""


class NonfiniteWeights:
    def __init__(self, session: ProbeContext, buffers: Buffers) -> None:
        self._session = session
        self._buffers = buffers
        self._last_reading = -REPEAT_STEPS
        self._last_evaluation = -REPEAT_STEPS
        self._loss_was_bad = False
        self._bad_readings = 0
        self._finite: dict[int, tuple[int, int]] = {}
        """Weight -> step and turn of its last finite reading; the turn is WHOLE if it is read whole."""
        self._turns: dict[int, tuple[int, int]] = {}
        """Weight of which a part is read -> the turn of its reading, and the elements of the part."""
        self._held: dict[int, int] = {}
        """Optimizer -> the turn in which a weight was not finite. The next turn would look like a recovery."""
        self._intended: set[int] = set()
        self._intended_moments: set[tuple[int, str]] = set()
        self._known_moments: set[tuple[int, str]] = set()
        self._reported: dict[str, tuple[list[Any], int]] = {}

    def held_turn(self, optimizer: torch.optim.Optimizer) -> int | None:
        """Returns the turn in which the next weights of an optimizer are read, None for any."""
        return self._held.get(id(optimizer))

    def at_end(self) -> None:
        """Reads the weights on the host if an error ends the program: many operators raise one on NaN."""
        error = sys.exc_info()[1] or getattr(sys, "last_value", None)
        if isinstance(error, Exception) and all(tensor.is_cpu for _, tensor in self._session.watched.alive()):
            self._read_all(self._session.row)

    def finish(self, row: Row, parts: list[Part]) -> None:
        self._turns = {index: turn for part in parts for index, turn in part.partial()}
        if row.stats:
            bad = self._sampled(row)
            self._hold(parts, bad)
        if parts:
            self._moments(row, parts)
        if "weights_looked" in row.raw:
            for indices, arrived in row.raw["weights_looked"]:
                harmful = np.array([index not in self._intended for index in indices], bool)
                norms = arrived.array()
                self._weights(row, [int(at) for at in indices[np.isnan(norms) | (np.isinf(norms) & harmful)]])
        norm = row.scalars.get("grad_norm", 0.0)
        if self._loss_was_bad or not math.isfinite((row.loss or 0.0) + norm):
            self._read_if_bad(row)
        evaluation = row.raw.get("evaluation")
        if evaluation is not None and row.step - self._last_evaluation >= REPEAT_STEPS and evaluation.is_known_bad():
            self._last_evaluation = row.step
            self._read_present(row, self._buffers.read)

    def _hold(self, parts: list[Part], bad: list[int]) -> None:
        for part in parts:
            if self._turns.keys() & set(bad) & set(part.indices.tolist()):
                self._held[part.optimizer] = part.turn
            elif self._held.get(part.optimizer) == part.turn:
                del self._held[part.optimizer]

    def _sampled(self, row: Row) -> list[int]:
        """Reports the weights of which a sampled element is not finite, and returns them."""
        bad: dict[int, int] = {}
        infinite = {
            int(index) for indices, norms in row.stats.get("weight.norm", ()) for index in indices[np.isinf(norms)]
        }
        for indices, numbers in row.stats.get("weight.nonfinite", ()):
            suspect = numbers > 0
            for index, count in zip(indices[suspect].tolist(), numbers[suspect].tolist(), strict=True):
                if not self._is_intended(row, index, int(count), index in infinite):
                    bad[index] = int(count)
        if bad:
            was_finite = all(self._was_finite(index, count) for index, count in bad.items())
            self._weights(row, sorted(bad), sum(bad.values()), was_finite)
        for indices, numbers in row.stats.get("weight.nonfinite", ()):
            finite = indices[numbers == 0].tolist()
            self._finite.update((index, (row.step, self._turn(index))) for index in finite)
        return list(bad)

    def _turn(self, index: int) -> int:
        return self._turns.get(index, (WHOLE, 0))[0]

    def _is_intended(self, row: Row, index: int, count: int, is_infinite: bool) -> bool:
        """Whether a weight has Inf and no NaN since its first reading and gives finite losses, as a mask does."""
        if self._was_finite(index, count) or not is_infinite:
            return False
        if not self._loss_was_bad and math.isfinite(row.loss or 0.0):
            self._intended.add(index)
        return index in self._intended

    def _was_finite(self, index: int, count: int) -> bool:
        """Whether these elements were finite, or others of the weight, in which a part this large would have shown."""
        if index not in self._finite:
            return False
        is_same = self._finite[index][1] == self._turn(index)
        return is_same or count >= EVERYWHERE * self._turns.get(index, (WHOLE, 0))[1]

    def _moments(self, row: Row, parts: list[Part]) -> None:
        bad: list[tuple[int, str, int]] = []
        for part in parts:
            counts = part.bad_moments()
            found = [(int(part.indices[at]), part.moment, int(counts[at])) for at in np.flatnonzero(counts)]
            if part.moment not in MOMENTS:
                self._note_intended(row, part, found)
            bad += [entry for entry in found if entry[:2] not in self._intended_moments]
        if bad and self._is_new("moments", [entry[:2] for entry in bad], row.step):
            names = self._session.watched.tensors
            tensors = [f"{names[index].name}.{moment}" for index, moment, _ in bad]
            elements = sum(count for _, _, count in bad)
            data = {"tensors": tensors[:MAX_NAMED_TENSORS], "count": len(bad), "elements": elements}
            row.events.append(("moments.nonfinite", data))

    def _note_intended(self, row: Row, part: Part, found: list[tuple[int, str, int]]) -> None:
        """Records moments of the program's own that are not finite at their first reading, with finite losses."""
        if not self._loss_was_bad and math.isfinite(row.loss or 0.0):
            self._intended_moments.update({entry[:2] for entry in found} - self._known_moments)
        self._known_moments.update((index, part.moment) for index in part.indices.tolist())

    def _was_finite_whole(self, index: int, count: int = 0) -> bool:
        """Whether a weight's last finite reading was of all its elements, or would have met some of these."""
        if index not in self._finite:
            return False
        is_whole = self._finite[index][1] == WHOLE
        return is_whole or count >= EVERYWHERE * self._session.watched.tensors[index].numel

    def _weights(self, row: Row, bad: list[int], elements: int | None = None, was_finite: bool | None = None) -> None:
        """Reports weights that are not finite.

        Args:
            elements: how many of their elements are not, None if they were not counted.
            was_finite: whether the last finite reading was of these elements, None if only whole readings prove it.
        """
        if bad and self._is_new("weights", bad, row.step):
            names = self._session.watched.tensors
            tensors = [names[index].name for index in bad[:MAX_NAMED_TENSORS]]
            if was_finite is None:
                was_finite = all(map(self._was_finite_whole, bad))
            last = min(self._finite[index][0] for index in bad) if was_finite else None
            is_proven = last is not None and self._were_all_read()
            data = {"tensors": tensors, "count": len(bad), "elements": elements}
            data |= {"last_finite": last if is_proven else None}
            data |= {} if is_proven or last is None else {"last_finite_part": last}
            row.events.append(("weights.nonfinite", data))
            row.urgent = True

    def _were_all_read(self) -> bool:
        """Whether the finite readings were of all elements of all trained weights.

        Otherwise, NaN may have spread from an element that was not read, as from a row of an embedding.
        """
        watched = self._session.watched
        trained = (index for optimizer in watched.optimizers for index in watched.parameters(optimizer)[1])
        return all(index in self._finite and self._finite[index][1] == WHOLE for index in trained)

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
        elif is_bad and not bad_loss and self._bad_readings < MAX_BAD_READINGS and self._was_applied_on_host(row):
            self._bad_readings += 1
            self._read_all(row)
        self._loss_was_bad = bad_loss

    def _was_applied_on_host(self, row: Row) -> bool:
        _, tensor = next(iter(self._session.watched.alive()), (0, None))
        return tensor is not None and tensor.is_cpu and not row.skipped and not row.fused

    def _read_all(self, row: Row) -> None:
        """Reads every weight and buffer, between two steps."""
        self._read_present(row, self._read)
        self._read_present(row, self._buffers.read)

    def _read_present(self, row: Row, read: Callable[[Row], None]) -> None:
        present = self._session.row
        target = row if present.step == row.step + 1 else present
        with torch.no_grad():
            unseen(lambda: read(target), ())

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
                suspect = [tensors[at] for at in np.flatnonzero(_not_finite(transfer))]
                counts += [
                    (index, _nonfinite(tensor))
                    for index, tensor in suspect
                    if index not in self._intended or torch.isnan(tensor).any()
                ]
            else:
                self._await([index for index, _ in tensors], transfer)
        bad = sorted((index, count) for index, count in counts if count)
        was_finite = all(self._was_finite_whole(index, count) for index, count in bad)
        self._weights(row, [index for index, _ in bad], sum(count for _, count in bad), was_finite)
        if not bad and places and all(device.type == "cpu" for device, _ in places):
            row.scalars.setdefault("weights_nonfinite", 0.0)

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
