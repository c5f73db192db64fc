"""Measures how long the steps wait for their data: from the end of a backward pass or step to the next forward pass.

Evaluation, checkpoints and other work between steps are part of it. Of several forward passes in a row the first one
ends the wait.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ammeter.torch_hooks import patch

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row


class Waits:
    name = "waits"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._since = 0.0
        """End of the last backward pass of the open step, in seconds of perf_counter; 0 after a forward pass."""

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        handles = [
            self._session.forward.subscribe(trains=guard(self._forward)),
            patch.backward(after=guard(self._after_backward)),
        ]
        return self._session.fast_path.pauses(handles)

    def finish(self, row: Row) -> None:
        waited = row.raw.get("waited")
        if waited is not None and "unobserved_inputs" not in row.raw:
            row.scalars["wait_seconds"] = waited

    def _forward(self, *_: Any) -> None:
        row, now = self._session.row, perf_counter()
        waited = row.raw.get("waited")
        if waited is None:
            row.raw["waited"] = now - row.began
        elif self._since:
            row.raw["waited"] = waited + now - self._since
        self._since = 0.0

    def _after_backward(self, *_: Any) -> None:
        if not patch.inside_backward():
            self._since = perf_counter()
