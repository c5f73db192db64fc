"""Delivers the outbox: each row once, with retries at growing intervals; the page shows the last error.

A stateful channel receives its alerts repeatedly, because it may have been restarted without them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ammeter_server.db import Row, Store
from ammeter_server.db.queries import outbox
from ammeter_server.notify.channel import Channel, RefusedError
from ammeter_server.process import activity_log, self_metrics

log = logging.getLogger(__name__)

LEASE_NS = 60 * 10**9
"""A delivery may take this long before another process retries it. Apprise times out after seconds."""

PAUSE_SECONDS = (1, 2, 5, 10, 30, 60, 300)
"""Before the second, third, ... attempt; the last one repeats."""

MAX_ALERT_PAUSE_SECONDS = 15
"""Of stateful channels: they are the operator's own, nearby, and one request carries every alert."""

LIFETIME_NS = 24 * 3600 * 10**9
"""After this an undelivered notification is marked as failed, with its error."""

ALERT_REPEAT_NS = 30 * 10**9
"""Between two repetitions of an alert to a stateful channel. Prometheus repeats about every minute."""

RESOLVED_REPEAT_NS = 15 * 60 * 10**9
"""A resolved alert is repeated this long, as by Prometheus: the receiver may have been restarted."""


class Outbox:
    """Sends due rows to their channels in several threads, so that a slow channel delays no other."""

    def __init__(self, store: Store, channels: Mapping[str, Channel], threads: int = 4) -> None:
        self.store = store
        self.channels = channels
        for name in channels:
            self_metrics.expect_deliveries(name)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="ammeter-outbox")

    def deliver_due(self, now: int, *, gathering: bool = False) -> int:
        """Starts the delivery of every due row. Returns their number.

        gathering: whether stateful channels, which group alerts, wait for more of them.
        """
        waiting = [name for name, channel in self.channels.items() if gathering and channel.stateful]
        with self.store.reading() as connection:
            due = outbox.due(connection, now, waiting)
        if due:
            with self.store.writing() as connection:
                mine = [row for row in due if outbox.claim(connection, row, now, now + LEASE_NS)]
            for rows in self._requests(mine):
                self._threads.submit(self._deliver, rows)
        return len(due)

    def close(self) -> None:
        """Waits for running deliveries."""
        self._threads.shutdown()

    def _requests(self, rows: Iterable[Row[Any]]) -> Iterable[Sequence[Row[Any]]]:
        """Groups rows into requests, in the order in which they were written."""
        by_channel: dict[str, list[Row[Any]]] = {}
        for row in rows:
            by_channel.setdefault(row.channel, []).append(row)
        for name, queue in by_channel.items():
            channel = self.channels.get(name)
            size = channel.most if channel else 1
            yield from (queue[begin : begin + size] for begin in range(0, len(queue), size))

    def _deliver(self, rows: Sequence[Row[Any]]) -> None:
        try:
            errors = self._attempt(rows)
            now = time.time_ns()
            stateful = self._is_stateful(rows[0].channel)
            with self.store.writing() as connection:
                for row, error in zip(rows, errors, strict=True):
                    outbox.settle(connection, row, outcome(row, error, now, stateful=stateful))
        except Exception:  # the lease of the rows ends and they are retried
            log.exception("%d deliveries to %s could not be recorded", len(rows), rows[0].channel)

    def _is_stateful(self, name: str) -> bool:
        channel = self.channels.get(name)
        return channel is not None and channel.stateful

    def _attempt(self, rows: Sequence[Row[Any]]) -> list[str | None]:
        """Sends rows to their channel. Returns the error of each row, or None."""
        channel = self.channels.get(rows[0].channel)
        if channel is None:
            name = rows[0].channel
            return [f"channel {name} is not configured here; configure it as when the incident opened"] * len(rows)
        error = self._send(channel, rows)
        for row in rows:
            if error is not None or row.state == "pending":  # repetitions of an alert are not logged
                values = {"channel": channel.name, "incident": row.incident, "kind": row.kind}
                activity_log.done(f"notification.{'failed' if error else 'sent'}", **values, attempt=row.attempts + 1)
        if isinstance(error, RefusedError) and len(rows) > 1:  # one of the messages may be invalid
            return [error_text(self._send(channel, [row])) for row in rows]
        return [error_text(error)] * len(rows)

    def _send(self, channel: Channel, rows: Sequence[Row[Any]]) -> Exception | None:
        try:
            channel.send([row.message for row in rows])
        except Exception as error:  # noqa: BLE001 - any error of a service's client is retried
            self_metrics.deliveries.labels(channel.name, "failed").inc(len(rows))
            first, more = rows[0], f" and {len(rows) - 1} more" if len(rows) > 1 else ""
            attempt = first.attempts + 1
            log.warning("%s: attempt %d for %s%s failed: %s", channel.name, attempt, first.incident, more, error)
            return error
        self_metrics.deliveries.labels(channel.name, "sent").inc(len(rows))
        return None


def outcome(row: Any, error: str | None, now: int, *, stateful: bool = False) -> dict[str, Any]:
    """The values of a row after an attempt: sent, due for repetition, due for a retry, or failed."""
    if error is not None:
        return _failed(row, error, now, stateful)
    if stateful and (row.kind == "opened" or (row.kind == "resolved" and now - row.created < RESOLVED_REPEAT_NS)):
        return {"state": "told", "sent": row.sent or now, "error": None, "attempts": 0, "due": now + ALERT_REPEAT_NS}
    return {"state": "sent", "sent": row.sent or now, "error": None}


def error_text(error: Exception | None) -> str | None:
    """The error as the page shows it."""
    return None if error is None else (str(error) or type(error).__name__)


def _failed(row: Any, error: str, now: int, stateful: bool) -> dict[str, Any]:
    lasting = stateful and row.kind == "opened"  # an alert fires until it is resolved
    if now - row.created >= LIFETIME_NS and not lasting:
        return {"state": "failed", "error": error[:2000]}
    pause = PAUSE_SECONDS[min(row.attempts, len(PAUSE_SECONDS) - 1)]
    pause = min(pause, MAX_ALERT_PAUSE_SECONDS) if stateful else pause
    return {"due": now + pause * 10**9, "error": error[:2000]}
