"""Carries out directives for all tensors: their statistics in the next steps, whatever the budget allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ammeter.recording.directives.request import Arm, Request

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

TENSORS = "tensors"

READ = (("gradients", "grad.norm"), ("full_gradients", "grad.absmax"), ("weights", "weight.norm"))
"""Fact -> the statistic that each tensor counted by it has."""


class AllTensors:
    """The requests of one session."""

    def __init__(self, session: ProbeContext) -> None:
        self._session = session

    def subscribe(self, probe: str) -> None:
        self._session.directives.subscribe(TENSORS, Arm(probe, self._begin, self._add, self._end))

    def _begin(self, request: Request) -> str:
        self._session.governor.read_all(request.first, request.last)
        request.facts |= {fact: 0 for fact, _ in READ} | {"nonfinite_gradients": 0, "nonfinite_weights": 0}
        return ""

    def _add(self, request: Request, row: Row) -> None:
        """Adds the tensors that a finished row has: the most in one step, and the largest gradient of the last one."""
        facts = request.facts
        counts = {fact: len({*_indices(row, stat)}) for fact, stat in READ}
        request.read_steps += any(counts.values())
        facts |= {fact: max(count, facts[fact]) for fact, count in counts.items()}
        indices, norms = _indices(row, "grad.norm"), _values(row, "grad.norm")
        finite = np.isfinite(norms)
        facts["nonfinite_gradients"] = max(facts["nonfinite_gradients"], int((~finite).sum()))
        nonfinite_weights = int((_values(row, "weight.nonfinite") > 0).sum())
        facts["nonfinite_weights"] = max(facts["nonfinite_weights"], nonfinite_weights)
        if finite.any():
            at = int(np.where(finite, norms, -1).argmax())
            tensor = self._session.watched.tensors[int(indices[at])].name
            facts["largest"] = {"tensor": tensor, "norm": float(norms[at])}

    def _end(self, request: Request) -> None:
        self._session.governor.read_all(0, -1)
        if not request.read_steps:
            request.facts.setdefault("reason", "unheard")


def _indices(row: Row, stat: str) -> list[int]:
    return [index for indices, _ in row.stats.get(stat, ()) for index in indices.tolist()]


def _values(row: Row, stat: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    parts = [values for _, values in row.stats.get(stat, ())]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)
