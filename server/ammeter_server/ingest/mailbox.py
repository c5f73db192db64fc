"""Hands directives to the streams that they are for, in the responses to batches.

A batch never waits for them: each process reads what is pending once a second, beside the batches, and only a stream
with a directive causes a write. Each directive is handed out at most once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from anyio import CapacityLimiter, to_thread

from ammeter_server.db import Row, Store
from ammeter_server.db.queries.handling import directives as query

log = logging.getLogger(__name__)

READ_SECONDS = 1.0
"""Between two readings of what is pending, while batches arrive."""

LIFETIME_NS = 600 * 10**9
"""After this a directive is not handed out: nobody expects its answer."""


class Mailbox:
    """The pending directives that this process knows. For the event loop only."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending: dict[str, list[Row[Any]]] = {}
        self._read_at = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._threads = CapacityLimiter(1)

    async def take(self, run: str, stream: str) -> list[dict[str, Any]]:
        """Returns the directives for a stream and marks them as delivered.

        Args:
            run: The run's id or the one that its processes use.
        """
        self._refresh()
        rows = [row for row in self._pending.get(stream, ()) if run in (row.run, row.external_id)]
        if not rows:
            return []
        del self._pending[stream]
        try:
            mine = await to_thread.run_sync(self._claim, rows, limiter=self._threads)
        except Exception:  # the batch is stored; its response does not fail for a directive
            log.exception("directives of stream %s could not be marked", stream)
            return []
        return [{"id": row.id, "arm": row.arm, "steps": row.steps} for row in mine]

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._read_at >= READ_SECONDS and (self._reading is None or self._reading.done()):
            self._read_at = now
            self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            rows = await to_thread.run_sync(self._rows, limiter=self._threads)
        except Exception as error:  # noqa: BLE001 - read again in a second
            log.debug("pending directives could not be read: %s", error)
            return
        pending: dict[str, list[Row[Any]]] = {}
        for row in rows:
            pending.setdefault(row.stream, []).append(row)
        self._pending = pending

    def _rows(self) -> list[Row[Any]]:
        with self._store.reading() as connection:
            return list(query.pending(connection, time.time_ns() - LIFETIME_NS))

    def _claim(self, rows: list[Row[Any]]) -> list[Row[Any]]:
        with self._store.writing() as connection:
            return [row for row in rows if query.claim(connection, row, time.time_ns())]
