"""Background thread for compaction, retention and day partitions, in parallel to ingest."""

from __future__ import annotations

import uuid
from functools import partial

from ammeter_server.context import AppContext
from ammeter_server.db import partitions
from ammeter_server.db.queries import compaction
from ammeter_server.db.step_tables import day_of
from ammeter_server.maintenance.compaction import MIN_SMALL_BLOCKS, compact
from ammeter_server.maintenance.retention import retain
from ammeter_server.process import memory
from ammeter_server.worker import Worker, attempt

PAUSE_SECONDS = 1.0
"""Between rounds, which is the delay until an ended stream is compacted."""

RECENT_NS = 300 * 10**9
"""Streams with contact this long before the last round are checked again. Failed ones are tried again after their
lease, and clocks of collectors differ."""

RETENTION_INTERVAL_NS = 60 * 10**9


class MaintenanceWorker(Worker):
    """Starts and stops with the collector. Several collectors share the streams by leases."""

    def __init__(self, context: AppContext) -> None:
        super().__init__("ammeter-maintenance")
        self.store = context.store
        self.settings = context.settings
        self.name = uuid.uuid4().hex
        self._contact_since = 0
        self._checked_rows: dict[str, int] = {}  # by stream, at its last compaction or check without work
        self._retained = 0

    def run_round(self, now: int) -> float:
        """Compacts streams, and once a minute prepares partitions, deletes old data and returns unused memory."""
        if not attempt("compaction", lambda: self.compact_due(now)):
            attempt("returning free space", lambda: partitions.shrink(self.store))
        if now - self._retained >= RETENTION_INTERVAL_NS:
            self._retained = now
            attempt("making partitions", lambda: partitions.prepare(self.store, day_of(now)))
            attempt("retention", lambda: retain(self.store, self.settings, day_of(now)))
            attempt("returning memory", memory.trim)
        return PAUSE_SECONDS

    def compact_due(self, now: int) -> int:
        """Compacts all streams with enough waiting blocks. Returns the number that this worker compacted."""
        with self.store.reading() as connection:
            due = compaction.due(connection, self._contact_since, now, MIN_SMALL_BLOCKS)
        before = {stream.id: self._checked_rows.get(stream.id, -MIN_SMALL_BLOCKS) for stream in due}
        grown = [stream for stream in due if stream.ended or stream.rows - before[stream.id] >= MIN_SMALL_BLOCKS]
        self._checked_rows = before | {stream.id: stream.rows for stream in grown}
        count = 0
        for stream in grown:
            if self._stopped.is_set():
                return count
            count += bool(attempt(f"compaction of run {stream.run}", partial(self._compact, stream.run, stream.id)))
        self._contact_since = now - RECENT_NS
        return count

    def _compact(self, run: str, stream: str) -> bool:
        return compact(self.store, run, stream, self.name, self._stopped.is_set)
