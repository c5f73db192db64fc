"""Delivers the outbox: each row once, tried again with growing pauses, its last error kept where people see it.

A channel that holds alerts is told each of them again and again: it may have been restarted, and forgotten them.
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
"""How long a delivery may take before another process may try. Apprise gives up after seconds."""

PAUSE_SECONDS = (1, 2, 5, 10, 30, 60, 300)
"""Seconds before the second, third ... attempt; the last one repeats."""

MAX_ALERT_PAUSE_SECONDS = 15
"""The longest pause where alerts are held: it is our own, it is nearby, and one post tells it everything."""

LIFETIME_NS = 24 * 3600 * 10**9
"""After that a notification that could not be delivered is news no more: it stays, as failed, with its error."""

ALERT_REPEAT_NS = 30 * 10**9
"""How often an alert is told again, where alerts are held. Prometheus does it every minute or so."""

RESOLVED_REPEAT_NS = 15 * 60 * 10**9
"""How long it is told again that one is over, as Prometheus does: the first time may have been before a restart."""


class Outbox:
    """Takes due rows and hands each to its channel, a few at a time, so that a slow one holds up nobody else."""

    def __init__(self, store: Store, channels: Mapping[str, Channel], threads: int = 4) -> None:
        self.store = store
        self.channels = channels
        for name in channels:
            self_metrics.expect_deliveries(name)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="ammeter-outbox")

    def deliver_due(self, now: int, *, gathering: bool = False) -> int:
        """Starts the delivery of every row whose time has come. Returns how many.

        gathering: whether channels that hold alerts, and group them, wait for more to be found.
        """
        waiting = [name for name, each in self.channels.items() if gathering and each.stateful]
        with self.store.reading() as connection:
            due = outbox.due(connection, now, waiting)
        if due:
            with self.store.writing() as connection:
                mine = [row for row in due if outbox.claim(connection, row, now, now + LEASE_NS)]
            for rows in self._together(mine):
                self._threads.submit(self._deliver, rows)
        return len(due)

    def close(self) -> None:
        """Waits for the deliveries under way."""
        self._threads.shutdown()

    def _together(self, rows: Iterable[Row[Any]]) -> Iterable[Sequence[Row[Any]]]:
        """What goes out in one message, in the order it was written."""
        of: dict[str, list[Row[Any]]] = {}
        for row in rows:
            of.setdefault(row.channel, []).append(row)
        for name, mine in of.items():
            channel = self.channels.get(name)
            most = channel.most if channel else 1
            yield from (mine[at : at + most] for at in range(0, len(mine), most))

    def _deliver(self, rows: Sequence[Row[Any]]) -> None:
        try:
            errors = self._attempt(rows)
            now = time.time_ns()
            stateful = self._holds(rows[0].channel)
            with self.store.writing() as connection:
                for row, error in zip(rows, errors, strict=True):
                    outbox.settle(connection, row, outcome(row, error, now, stateful=stateful))
        except Exception:  # the rows' lease ends and they are tried again
            log.exception("%d deliveries to %s could not be noted", len(rows), rows[0].channel)

    def _holds(self, name: str) -> bool:
        channel = self.channels.get(name)
        return channel is not None and channel.stateful

    def _attempt(self, rows: Sequence[Row[Any]]) -> list[str | None]:
        """Sends them to their channel. Returns what went wrong with each, if anything."""
        channel = self.channels.get(rows[0].channel)
        if channel is None:
            said = f"channel {rows[0].channel} is not configured here; set it as when the incident opened"
            return [said] * len(rows)
        error = self._send(channel, rows)
        for row in rows:
            if error is not None or row.state == "pending":  # an alert is told again and again
                of = {"channel": channel.name, "incident": row.incident, "kind": row.kind}
                activity_log.done(f"notification.{'failed' if error else 'sent'}", **of, attempt=row.attempts + 1)
        if isinstance(error, RefusedError) and len(rows) > 1:  # one of them may be what is wrong
            return [text(self._send(channel, [row])) for row in rows]
        return [text(error)] * len(rows)

    def _send(self, channel: Channel, rows: Sequence[Row[Any]]) -> Exception | None:
        try:
            channel.send([row.message for row in rows])
        except Exception as error:  # noqa: BLE001 - whatever a service's client raises is a reason to try again
            self_metrics.deliveries.labels(channel.name, "failed").inc(len(rows))
            first, more = rows[0], f" and {len(rows) - 1} more" if len(rows) > 1 else ""
            tried = first.attempts + 1
            log.warning(
                "%s could not be told about %s%s (%d times): %s", channel.name, first.incident, more, tried, error
            )
            return error
        self_metrics.deliveries.labels(channel.name, "sent").inc(len(rows))
        return None


def outcome(row: Any, error: str | None, now: int, *, stateful: bool = False) -> dict[str, Any]:
    """What to write after an attempt: sent, to be told again, another attempt later, or failed for good."""
    if error is not None:
        return _failed(row, error, now, stateful)
    if stateful and (row.kind == "opened" or (row.kind == "resolved" and now - row.created < RESOLVED_REPEAT_NS)):
        return {"state": "told", "sent": row.sent or now, "error": None, "attempts": 0, "due": now + ALERT_REPEAT_NS}
    return {"state": "sent", "sent": row.sent or now, "error": None}


def text(error: Exception | None) -> str | None:
    """What people read about it."""
    return None if error is None else (str(error) or type(error).__name__)


def _failed(row: Any, error: str, now: int, stateful: bool) -> dict[str, Any]:
    lasting = stateful and row.kind == "opened"  # it fires until it is over
    if now - row.created >= LIFETIME_NS and not lasting:
        return {"state": "failed", "error": error[:2000]}
    pause = PAUSE_SECONDS[min(row.attempts, len(PAUSE_SECONDS) - 1)]
    pause = min(pause, MAX_ALERT_PAUSE_SECONDS) if stateful else pause
    return {"due": now + pause * 10**9, "error": error[:2000]}
