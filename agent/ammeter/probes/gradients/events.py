"""Emits events about gradients: non-finite tensors, and the spectrum of exponents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ammeter.tensors.exponents import LOWEST

if TYPE_CHECKING:
    from ammeter.probes.gradients.reading import GradientReading
    from ammeter.recording.row import Row
    from ammeter.torch_hooks.targets import Watched

MAX_NAMED_TENSORS = 20
"""Non-finite tensors that an event names, so that it stays small; their number is always reported."""

REPEAT_STEPS = 100
"""Steps after which an unchanged list of non-finite tensors is reported again."""

MAX_COUNTED_STEPS = 10
"""Consecutive non-finite steps whose elements are counted exactly; later counts need the governor's permission."""


class NonfiniteEvents:
    """Reports the tensors with non-finite gradients; a persistent list only every REPEAT_STEPS.

    Attributes:
        bad_steps: consecutive steps with non-finite gradients until now.
    """

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._reported: tuple[list[int], int] = ([], -REPEAT_STEPS)
        self.bad_steps = 0

    def emit(self, row: Row, nonfinite: list[int], known: list[int]) -> None:
        """Adds the event to the row, if it is due.

        Args:
            nonfinite: indices of the non-finite tensors, sorted.
            known: indices of all tensors that were read.
        """
        self.bad_steps = self.bad_steps + 1 if nonfinite else 0
        if not nonfinite:
            return
        reported, step = self._reported
        if reported == nonfinite and row.step - step < REPEAT_STEPS and self.bad_steps >= MAX_COUNTED_STEPS:
            return
        self._reported = (nonfinite, row.step)
        names, last = self._watched.tensors, nonfinite[-1]
        tensors = [{"tensor": names[index].name, **_counts(row, index)} for index in nonfinite[:MAX_NAMED_TENSORS]]
        data = {
            "tensors": tensors,
            "count": len(nonfinite),
            "last": names[last].name,
            "finite_after": sum(index > last for index in known),
            "finite": len(known) - len(nonfinite),
            "scaled": bool(row.raw.get("scaled")),
        }
        row.events.append(("gradient.nonfinite", data))


def emit_spectrum(row: Row, readings: Sequence[GradientReading]) -> None:
    """Reports the spectrum, still multiplied by the scale, as float16 had to represent the elements."""
    spectra = [reading.spectrum.array() for reading in readings if reading.spectrum]
    if spectra:
        scale = next(reading.scale for reading in readings if reading.spectrum).number()
        counts = np.asarray(sum(spectra)).astype(int).tolist()
        row.events.append(("gradient.spectrum", {"lowest": LOWEST, "counts": counts, "scale": scale}))


def _counts(row: Row, index: int) -> dict[str, int]:
    """NaN and Inf elements of one gradient, as far as they were counted."""
    counts: dict[str, int] = {}
    for stat, name in (("grad.nans", "nans"), ("grad.infs", "infs")):
        for indices, values in row.stats.get(stat, []):
            for place in np.flatnonzero(indices == index):
                counts[name] = int(values[place])
    return counts
