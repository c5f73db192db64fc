"""Delivers the outbox: each row once, tried again with growing pauses, its last error kept where people see it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ammeter_server import meters
from ammeter_server.channels import Channel
from ammeter_server.store import Row, Store, outbox

log = logging.getLogger(__name__)

LEASE = 60 * 10**9
"""How long a delivery may take before another process may try. Apprise gives up after seconds."""

PAUSES = (1, 2, 5, 10, 30, 60, 300)
"""Seconds before the second, third ... attempt; the last one repeats."""

LIFETIME = 24 * 3600 * 10**9
"""After that a notification that could not be delivered is news no more: it stays, as failed, with its error."""


class Outbox:
    """Takes due rows and hands each to its channel, a few at a time, so that a slow one holds up nobody else."""

    def __init__(self, store: Store, channels: Mapping[str, Channel], threads: int = 4) -> None:
        self.store = store
        self.channels = channels
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="ammeter-outbox")

    def deliver_due(self, now: int) -> int:
        """Starts the delivery of every row whose time has come. Returns how many."""
        with self.store.reading() as connection:
            due = outbox.due(connection, now)
        for row in due:
            with self.store.writing() as connection:
                mine = outbox.claim(connection, row.run, row.id, now, now + LEASE)
            if mine:
                self._threads.submit(self._deliver, row)
        return len(due)

    def close(self) -> None:
        """Waits for the deliveries under way."""
        self._threads.shutdown()

    def _deliver(self, row: Row[Any]) -> None:
        try:
            error = self._attempt(row)
            now = time.time_ns()
            with self.store.writing() as connection:
                outbox.settle(connection, row.run, row.id, outcome(row.attempts + 1, row.created, error, now))
        except Exception:  # the row's lease ends and it is tried again
            log.exception("delivery %s of %s could not be noted", row.id, row.incident)

    def _attempt(self, row: Row[Any]) -> str | None:
        """Sends it. Returns what went wrong, if anything."""
        channel = self.channels.get(row.channel)
        if channel is None:
            return (
                f"channel {row.channel} is not configured here; set AMMETER_SERVER_NOTIFY as when the incident opened"
            )
        try:
            channel.send(row.message)
        except Exception as error:  # noqa: BLE001 - whatever a service's client raises is a reason to try again
            meters.deliveries.labels(row.channel, "failed").inc()
            log.warning("%s could not be told about %s (attempt %d): %s", *_named(row), error)
            return str(error) or type(error).__name__
        meters.deliveries.labels(row.channel, "sent").inc()
        return None


def outcome(attempts: int, created: int, error: str | None, now: int) -> dict[str, Any]:
    """What to write after an attempt: sent, another attempt later, or failed for good."""
    if error is None:
        return {"state": "sent", "sent": now, "error": None}
    if now - created >= LIFETIME:
        return {"state": "failed", "error": error[:2000]}
    return {"due": now + PAUSES[min(attempts, len(PAUSES)) - 1] * 10**9, "error": error[:2000]}


def _named(row: Row[Any]) -> tuple[str, str, int]:
    return row.channel, row.incident, row.attempts + 1
