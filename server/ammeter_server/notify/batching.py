"""When to tell Alertmanager what was found: once nothing was added to it for a moment, so that what breaks together is
one notification. Other channels have a message for each incident, and nothing to wait for."""

from __future__ import annotations

QUIET_NS = 400_000_000
"""ns without another one, after which all are told. A node, a disk or a network that fails breaks its runs within a
moment; one that breaks alone is told that much later, even while it goes on to be broken."""

MAX_WAIT_NS = 3_400_000_000
"""ns that the first of them waits at most: a page is due within five seconds, and Alertmanager waits for one of them
itself. From then on nobody waits until it is quiet, so what is found in that second is told with the first."""


class NotificationBatch:
    """For one collector process. Only its sweeper asks it."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._last = 0

    def should_wait(self, now: int, *, told: bool = False, more: bool = False) -> bool:
        """Whether to wait for more. told: whether something was just found of which somebody has to be told. more:
        whether a look is not over yet, so that nobody knows whether it is quiet."""
        if told:
            self._first, self._last = self._first or now, now
        if self._first is None:
            return False
        if not more and now - self._last >= QUIET_NS:
            self._first = None
            return False
        return now - self._first < MAX_WAIT_NS
