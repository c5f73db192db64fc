"""What a step costs: its wall time, and how much of that was ours."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ammeter.row import Row
    from ammeter.session import Session


class Resources:
    name = "resources"

    def __init__(self, session: Session) -> None:
        self._session = session
        self._previous: float | None = None

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        return []

    def close(self, row: Row) -> None:
        """The step ends now."""
        now, overhead = perf_counter(), self._session.take_overhead()
        if self._previous is not None:
            row.scalars["step_seconds"] = now - self._previous
            self._session.governor.earn(now - self._previous, overhead)
        self._previous = now
        row.scalars["overhead_seconds"] = overhead

    def finish(self, row: Row) -> None:
        """Nothing to fill: time is read when the step closes."""
