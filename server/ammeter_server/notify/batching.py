"""Delays alerts for Alertmanager until no new one is found, so that a common failure is one notification.

Other channels receive a message for each incident and do not wait.
"""

from __future__ import annotations

QUIET_NS = 400_000_000
"""Alerts are sent after this time without another one. A failed node, disk or network breaks its runs within a moment;
a single alert is delayed by this time."""

MAX_WAIT_NS = 3_400_000_000
"""Maximum delay of the first alert: a page is due within 5 s, and Alertmanager itself waits 1 s. Alerts of that second
are sent with the first."""


class NotificationBatch:
    """The alerts that wait in one collector process. Not thread-safe: the judge worker's only."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._last = 0

    def should_wait(self, now: int, *, new_alert: bool = False, more: bool = False) -> bool:
        """Decides whether alerts wait.

        Args:
            now: In ns.
            new_alert: Whether a new alert was just found.
            more: Whether the round is unfinished, so that more alerts may follow.
        """
        if new_alert:
            self._first, self._last = self._first or now, now
        if self._first is None:
            return False
        if not more and now - self._last >= QUIET_NS:
            self._first = None
            return False
        return now - self._first < MAX_WAIT_NS
