"""One thread that keeps the database in shape while frames come in: compaction, retention, partitions of days."""

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
"""Seconds between looks: how long a stream that has ended waits to be compacted."""

SINCE = 300 * 10**9
"""ns before the last look, since when streams were heard of that are looked at: what failed is tried again after its
lease, and collectors' clocks differ."""

RETENTION = 60 * 10**9
"""ns between two looks at what is too old or too much."""


class MaintenanceWorker:
    """Starts with the collector and stops with it. Several collectors share the streams by claiming them."""

    def __init__(self, context: AppContext) -> None:
        self.store = context.store
        self.settings = context.settings
        self.name = uuid.uuid4().hex
        self._heard_since = 0
        self._seen: dict[str, int] = {}  # stream -> its rows when there was last nothing to do, or it was done
        self._retained = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ammeter-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and waits for the segment that is being written. Twice is fine."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def look(self, now: int) -> None:
        """One look at everything. A part that fails is logged and tried at the next look; the others go on."""
        if not _guarded("compaction", lambda: self.compact_due(now)):
            _guarded("giving room back", lambda: partitions.shrink(self.store))
        if now - self._retained >= RETENTION:
            self._retained = now
            _guarded("making partitions", lambda: partitions.prepare(self.store, day_of(now)))
            _guarded("retention", lambda: retain(self.store, self.settings, day_of(now)))

    def compact_due(self, now: int) -> int:
        """Compacts every stream that has enough waiting. Returns how many were this keeper's to do."""
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
    except (StoreBrokenError, StoreRefusingError):  # the store itself says so in the log, once a minute
        return None
    except (StoreFullError, StoreAwayError) as wrong:
        log.warning("%s waits: %s", what, wrong)
        return None
    except Exception:  # the keeper outlives what nobody thought of
        log.exception("%s failed; it is tried again", what)
        return None
