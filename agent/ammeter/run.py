"""The handle a program holds: say something about a step, and end the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ammeter.session import Session


stand_ins: list[Callable[[], None]] = []
"""What makes way when the program calls watch() itself: `ammeter run` watches only where nobody else does."""


class Run:
    """id: the run's UUID, '' when nothing is watched (AMMETER_DISABLE, or a fault of ours at the start)."""

    def __init__(
        self, id: str = "", session: Session | None = None, farewell: Callable[[], None] | None = None
    ) -> None:
        self.id = id
        self._session = session
        self._farewell = farewell

    def log(self, **values: Any) -> None:
        """Adds numbers to the step that closed last: run.log(loss=..., val_loss=..., samples=...).

        A value is a number or a tensor with one element; a tensor is copied asynchronously, never waited for.
        """
        if self._session is not None:
            self._session.log(values)

    def close(self) -> None:
        """Ends the run: writes what is left, undoes every hook, and waits at most AMMETER_FLUSH seconds for the
        collector to have it. Called at exit by itself; twice is fine."""
        session, self._session = self._session, None
        if session is not None and session.close() and self._farewell is not None:
            self._farewell()
