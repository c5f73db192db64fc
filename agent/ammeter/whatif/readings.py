"""Collects the readings of each tensor from the events of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ammeter.whatif.histogram import Histogram, histogram_of

EVENT = "tensor.exponents"

GRADIENT, WEIGHT = KINDS = ("gradient", "weight")
"""What a reading can be of."""

MAX_READINGS = 32
"""Newest readings of a tensor that are kept. With the agent's schedule, they cover more steps than a run has."""


class Readings:
    """The readings of each tensor, in the order in which the tensors were first read."""

    def __init__(self, of: str) -> None:
        self._of = of
        self._readings: dict[str, list[Histogram]] = {}

    def add(self, step: int, data: Mapping[str, Any]) -> None:
        """Adds an event.

        Ignored are other kinds, malformed entries, and tensors with NaN or Inf: on a device, the agent cannot know that
        it reads a step that overflowed.
        """
        entries = data.get("tensors")
        if data.get("of") != self._of or not isinstance(entries, list):
            return
        for entry in entries:
            known = histogram_of(step, data.get("scale"), entry)
            if known and not known[1].nonfinite:
                name, histogram = known
                self._readings[name] = [*self._readings.get(name, ()), histogram][-MAX_READINGS:]

    def later_half(self) -> dict[str, list[Histogram]]:
        """Returns the readings of the later half of each tensor's steps: a run leaves its begin behind."""
        return {
            name: [reading for reading in readings if 2 * reading.step >= readings[-1].step]
            for name, readings in self._readings.items()
        }


def readings_of(events: Iterable[tuple[int, Mapping[str, Any]]], of: str) -> dict[str, list[Histogram]]:
    """Returns the later readings of each tensor from (step, data) of a stream's events, in order."""
    collected = Readings(of)
    for step, data in events:
        collected.add(step, data)
    return collected.later_half()
