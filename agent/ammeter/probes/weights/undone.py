"""Finds updates that the program undoes: before the next step, the weights are what they were before the last one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ammeter.probes.weights.updates import Part
    from ammeter.recording.row import Row
    from ammeter.tensors.slices import Buffer

MAX_ELEMENTS = 64
"""Elements that are compared, spread over all tensors that are read."""

KEPT, UNDONE, UNKNOWN = 0.0, 1.0, 2.0
"""Outcomes of a comparison; unknown if the last step has changed none of the elements."""

MIN_READINGS = 5
MIN_READINGS_AFTER_KEPT = 8
"""Consecutive readings that must agree, before and after one that found an update kept. A line search may reject
several updates, and not each step is read."""


class Elements:
    """A few weights before and after the last step that was read, as copies on their device."""

    def __init__(self) -> None:
        self._before: torch.Tensor | None = None
        self._after: torch.Tensor | None = None

    def before(self, buffer: Buffer) -> None:
        self._before, self._after = _chosen(buffer), None

    def after(self, buffer: Buffer) -> None:
        self._after = _chosen(buffer)

    def compared(self, buffer: Buffer) -> torch.Tensor | None:
        """Compares the weights before the next step with them.

        Returns:
            An outcome in a tensor without dimensions; None if the last step has raised an error.
        """
        if self._before is None or self._after is None:
            return None
        now = _chosen(buffer)
        is_back = (now == self._before).all().float()
        return torch.where((self._after != self._before).any(), is_back, UNKNOWN)


def _chosen(buffer: Buffer) -> torch.Tensor:
    flat = buffer.blocks.view(-1)
    return flat[:: max(1, flat.numel() // MAX_ELEMENTS)].clone()


class UndoneUpdates:
    """Reports once that the updates of an optimizer are undone, and once that they are kept again."""

    def __init__(self) -> None:
        self._readings: dict[int, int] = {}
        """By id of the optimizer: consecutive readings after which its updates were undone."""
        self._limits: dict[int, int] = {}
        self._reported: set[int] = set()

    def finish(self, row: Row, parts: Sequence[Part]) -> None:
        for part in parts:
            outcome = UNKNOWN if part.undone is None else part.undone.number()
            before = self._readings.get(part.optimizer, 0)
            if outcome == UNDONE:
                self._readings[part.optimizer] = before + 1
                is_undone = before + 1 >= self._limits.get(part.optimizer, MIN_READINGS)
                if is_undone and part.optimizer not in self._reported:
                    self._reported.add(part.optimizer)
                    row.events.append(("weights.undone", {"undone": True}))
            elif outcome == KEPT:
                self._readings[part.optimizer] = 0
                self._limits[part.optimizer] = MIN_READINGS_AFTER_KEPT
                if part.optimizer in self._reported:
                    self._reported.remove(part.optimizer)
                    row.events.append(("weights.undone", {"undone": False}))
