"""Background thread for compaction, retention and day partitions, in parallel to ingest."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from ammeter_server.context import AppContext
from ammeter_server.db import StoreAwayError, StoreBrokenError, StoreFullError, StoreRefusingError, partitions
from ammeter_server.db.queries import compaction
from ammeter_server.db.step_tables import day_of
from ammeter_server.maintenance.compaction import TOGETHER, compact
from ammeter_server.maintenance.retention import retain

log = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds between rounds, which is the delay until an ended stream is compacted."""

SINCE = 300 * 10**9
"""Nanoseconds before the last round from which streams count as recently active. Failed ones are tried again after
their lease, and clocks of collectors differ."""

RETENTION = 60 * 10**9
"""Nanoseconds between rounds of retention."""


class MaintenanceWorker:
    """Starts and stops with the collector. Several collectors share the streams by leases."""

    def __init__(self, context: AppContext) -> None:
        self.store = context.store
        self.settings = context.settings
        self.name = uuid.uuid4().hex
        self._heard_since = 0
        self._seen: dict[str, int] = {}  # stream -> its rows at the last compaction or check without work
        self._retained = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ammeter-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread after the segment in progress. Can be called again."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def look(self, now: int) -> None:
        """Runs one round.

        A part that fails is logged and retried in the next round; others continue.
        """
        if not _guarded("compaction", lambda: self.compact_due(now)):
            _guarded("giving room back", lambda: partitions.shrink(self.store))
        if now - self._retained >= RETENTION:
            self._retained = now
            _guarded("making partitions", lambda: partitions.prepare(self.store, day_of(now)))
            _guarded("retention", lambda: retain(self.store, self.settings, day_of(now)))

    def compact_due(self, now: int) -> int:
        """Compacts all streams with enough waiting blocks. Returns the number that this worker compacted."""
        with self.store.reading() as connection:
            due = compaction.due(connection, self._heard_since, now, TOGETHER)
        before = {stream.id: self._seen.get(stream.id, -TOGETHER) for stream in due}
        news = [stream for stream in due if stream.ended or stream.rows - before[stream.id] >= TOGETHER]
        self._seen = before | {stream.id: stream.rows for stream in news}
        done = 0
        for each in news:
            if self._stopped.is_set():
                return done
            done += bool(_guarded(f"compaction of run {each.run}", partial(self._compact, each.run, each.id)))
        self._heard_since = now - SINCE
        return done

    def _compact(self, run: str, stream: str) -> bool:
        return compact(self.store, run, stream, self.name, self._stopped.is_set)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.look(time.time_ns())
            self._stopped.wait(PAUSE)


def _guarded(what: str, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except (StoreBrokenError, StoreRefusingError):  # the store logs it itself, once a minute
        return None
    except (StoreFullError, StoreAwayError) as wrong:
        log.warning("%s waits: %s", what, wrong)
        return None
    except Exception:  # the thread survives unexpected errors
        log.exception("%s failed; it is tried again", what)
        return None
