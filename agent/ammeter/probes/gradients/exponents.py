"""Counts the exponents of each gradient and each weight, in rounds over all tensors of an optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from ammeter.tensors import ABSMAX, COLUMNS, ZEROS, async_copy
from ammeter.tensors.samples import is_copyable, sampled_elements, samples
from ammeter.tensors.slices import readable
from ammeter.whatif.cells import count
from ammeter.whatif.readings import GRADIENT, KINDS

if TYPE_CHECKING:
    from ammeter.probes.gradients.reading import GradientReading
    from ammeter.recording.row import Row
    from ammeter.torch_hooks.targets import Watched
    from ammeter.wire.frames import Tensor

FIRST_READING = 3
"""Full reading of an optimizer that begins its first round: the readings before it include the first use of memory."""

INTERVAL_FACTOR = 2
"""A round begins when the optimizer has had so many times the full readings of the end of the round before. The newest
round is therefore of the later half of a run, and a run of any length has a few dozen events of each tensor."""

MAX_ELEMENTS = 65_536
"""Elements that one reading copies: about 0.4 ms."""

ELEMENTS_PER_SAMPLED = 32
"""Of an optimizer with more than 32 * MAX_ELEMENTS elements, a reading copies one in 32. It then takes about as long
as the full reading beside it, which reads all."""

MAX_TENSORS = 32
"""Tensors of one reading: counting takes 20 us for each, whatever its size."""

Task = tuple[str, int]
"""What is read of a tensor, one of KINDS, and its index in watched.tensors."""


class _Rounds(msgspec.Struct):
    """The progress of one optimizer."""

    full_readings: int = 0
    begins_at: int = FIRST_READING
    turn: int = 0
    tasks: list[Task] = msgspec.field(default_factory=list)


class ExponentReading(msgspec.Struct, frozen=True):
    """Copied elements of tensors on one device; transfers may be pending.

    Attributes:
        of: gradient or weight.
        indices: the tensors in watched.tensors.
        elements: the number of elements of each tensor, of an embedding's gradient without the rows that are zero.
        sizes: the number of copied elements of each tensor.
        scale: the scale that the elements are multiplied by.
        statistics: the full reading of the same gradients.
    """

    of: str
    indices: list[int]
    elements: list[int]
    sizes: list[int]
    values: async_copy.Transfer
    scale: async_copy.Transfer
    statistics: GradientReading | None

    def event(self, tensors: Sequence[Tensor]) -> dict[str, Any]:
        """Counts the elements of each tensor."""
        values = self.values.array().astype(np.float32, copy=False)
        entries = zip(self.indices, self.elements, self._largest(values), count(values, self.sizes), strict=True)
        return {
            "of": self.of,
            "scale": self.scale.number(),
            "tensors": [
                {"tensor": tensors[index].name, "elements": elements, "absmax": absmax, **counted._asdict()}
                for index, elements, absmax, counted in entries
            ],
        }

    def _largest(self, values: npt.NDArray[np.float32]) -> list[float]:
        """Returns the largest finite magnitude of each tensor: of all gradient elements, of the copied weights."""
        if self.statistics is not None:
            rows = self.statistics.values.array().reshape(-1, COLUMNS)[:, ABSMAX]
            known = dict(zip(self.statistics.indices.tolist(), rows.tolist(), strict=True))
            return [known[index] for index in self.indices]
        finite = np.where(np.isfinite(values), np.abs(values), 0)
        return [float(part.max()) for part in np.split(finite, np.cumsum(self.sizes)[:-1])]


class ExponentReader:
    """Decides what is read, and copies it. It keeps no tensor of the program."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._rounds: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Rounds] = weakref.WeakKeyDictionary()

    def is_due(self, optimizer: torch.optim.Optimizer, readings: Sequence[GradientReading]) -> bool:
        """Whether tensors are to be read beside this reading of the optimizer's gradients; counts full readings."""
        if not all(reading.is_full for reading in readings):
            return False
        rounds = self._rounds.setdefault(optimizer, _Rounds())
        rounds.full_readings += 1
        is_finite = not any(reading.has_nonfinite for reading in readings)
        return is_finite and rounds.full_readings >= rounds.begins_at

    def read(
        self, optimizer: torch.optim.Optimizer, gradients: dict[int, torch.Tensor], readings: Sequence[GradientReading]
    ) -> Iterator[ExponentReading]:
        """Yields the copies beside a full reading for which is_due() is true, one per device and kind.

        Args:
            gradients: index of each tensor -> its gradient.
            readings: the full readings of these gradients, one per device.
        """
        rounds = self._rounds[optimizer]
        if not rounds.tasks:
            rounds.tasks = [(kind, index) for kind in KINDS for index in gradients]
            rounds.turn += 1
        tasks = _take(rounds.tasks, gradients)
        if not rounds.tasks:
            rounds.begins_at = INTERVAL_FACTOR * rounds.full_readings
        for reading in readings:
            here = set(reading.indices.tolist())
            for kind in KINDS:
                due = [index for of, index in tasks if of == kind and index in here]
                chosen = gradients if kind == GRADIENT else self._weights(optimizer, due)
                yield from _copied(
                    kind, {index: chosen[index] for index in due if index in chosen}, reading, rounds.turn
                )

    def _weights(self, optimizer: torch.optim.Optimizer, due: list[int]) -> dict[int, torch.Tensor]:
        parameters, indices = self._watched.parameters(optimizer)
        places = {index: place for place, index in enumerate(indices)}
        weights = {index: readable(parameters[places[index]]) for index in due}
        return {index: weight for index, weight in weights.items() if weight is not None and is_copyable(weight)}


def emit(row: Row, readings: Sequence[ExponentReading], tensors: Sequence[Tensor]) -> None:
    """Reports the exponents, multiplied by the scale, as float16 had to represent the elements."""
    row.events += [("tensor.exponents", reading.event(tensors)) for reading in readings]


def _take(tasks: list[Task], gradients: dict[int, torch.Tensor]) -> list[Task]:
    """Removes and returns the first tasks, as many as one reading may have; of tensors without a gradient none."""
    total = sum(gradient.numel() for gradient in gradients.values())
    room = max(MAX_ELEMENTS, total // ELEMENTS_PER_SAMPLED)
    taken: list[Task] = []
    while tasks and len(taken) < MAX_TENSORS:
        kind, index = tasks[0]
        size = sampled_elements(gradients[index].numel()) if index in gradients else 0
        if taken and size > room:
            break
        room -= size
        tasks.pop(0)
        taken += [(kind, index)] if size else []
    return taken


def _copied(
    kind: str, chosen: dict[int, torch.Tensor], reading: GradientReading, turn: int
) -> Iterator[ExponentReading]:
    if not chosen:
        return
    is_gradient = kind == GRADIENT
    zeros = _zeros(reading) if is_gradient else {}
    copied = samples(list(chosen.values()), [zeros.get(index, 0.0) for index in chosen], turn)
    yield ExponentReading(
        of=kind,
        indices=list(chosen),
        elements=[sample.elements for sample in copied],
        sizes=[len(sample.values) for sample in copied],
        values=async_copy.of(torch.cat([sample.values for sample in copied])),
        scale=reading.scale if is_gradient else async_copy.number(1.0),
        statistics=reading if is_gradient else None,
    )


def _zeros(reading: GradientReading) -> dict[int, float]:
    """Returns the zeros in each gradient, if the host knows them already."""
    if not reading.values.on_host:
        return {}
    zeros = reading.values.array().reshape(-1, COLUMNS)[:, ZEROS]
    return dict(zip(reading.indices.tolist(), zeros.tolist(), strict=True))
