"""Decides how long new rows of a stream wait for their verdicts, by the load of the collector.

One view of many rows is much cheaper to judge than many views of one row: most of the time of a verdict is spent once
per view. So the more of their time the writer threads are busy, the longer rows are gathered before they are judged.
They are committed at once in any case, and a row that waits in a collector which dies is judged by the next one.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from ammeter_server.ingest.stream_cache import StreamKey
from ammeter_server.ingest.stream_update import CachedStream

MAX_DELAY_NS = 5 * 10**9
"""Longest delay of a row that an otherwise usual batch brings, as long as between two checks of silent streams."""

IDLE_SHARE = 0.5
"""While the writer threads are busy for less of their time, nothing is postponed."""

GRACE_NS = 10**9
"""After the delay, the next batch of a stream may come this much later, and is judged with the rows that wait."""

LOAD_SECONDS = 0.5
"""Time constant of the exponential mean of the load."""

MAX_WAITING_VALUES = 16_000_000
"""Values of all streams that may wait together: 64 MB. A group of batches in preparation may add 32 MB."""


class _Waiting(NamedTuple):
    """Postponed rows of one stream. since: when the first of them was committed, in ns; run: the stored run's id."""

    since: int
    run: str
    values: int


class Postponement:
    """The postponed rows of one collector process. Thread-safe. clock: monotonic time in ns."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._busy_share = 0.0
        self._waiting: dict[StreamKey, _Waiting] = {}  # the oldest first
        self._values = 0

    def observe(self, seconds: float, busy: bool) -> None:
        """Adds a time in which a writer thread worked, or waited for a batch."""
        with self._lock:
            kept = math.exp(-seconds / LOAD_SECONDS)
            self._busy_share = self._busy_share * kept + busy * (1 - kept)

    @property
    def delay(self) -> int:
        """How long rows wait at most for further ones of their stream, in ns; 0 while there is time for every batch."""
        return int(MAX_DELAY_NS * max(0.0, self._busy_share - IDLE_SHARE) / (1 - IDLE_SHARE))

    def delay_of(self, key: StreamKey) -> int:
        """Returns how long new rows of a stream may wait for their verdicts, in ns."""
        delay, waiting = self.delay, self._waiting.get(key)
        waited = 0 if waiting is None else self._clock() - waiting.since
        return delay if waited < delay and self._values < MAX_WAITING_VALUES else 0

    def note(self, key: StreamKey, stream: CachedStream) -> None:
        """Records whether a stream has postponed rows, after each commit of it."""
        if stream.state.postponed_from is None:
            self.forget(key)
            return
        rows = stream.postponed
        values = rows.rows * rows.schema.width if rows else 0
        with self._lock:
            before = self._waiting.get(key)
            since = before.since if before else self._clock()
            self._waiting[key] = _Waiting(since, stream.state.run, values)
            self._values += values - (before.values if before else 0)

    def forget(self, key: StreamKey) -> None:
        if key in self._waiting:
            with self._lock:
                waiting = self._waiting.pop(key, None)
                self._values -= waiting.values if waiting else 0

    def take_overdue(self, most: int, at_once: bool = False) -> dict[StreamKey, str]:
        """Takes out streams whose rows have waited too long, the oldest first, with the ids of their stored runs.

        Args:
            most: How many.
            at_once: Every stream with postponed rows has waited too long.
        """
        delay = self.delay
        before = self._clock() - (delay + GRACE_NS if delay and not at_once else 0)
        with self._lock:
            oldest = islice(self._waiting.items(), most)
            overdue = {key: waiting.run for key, waiting in oldest if waiting.since <= before}
            for key in overdue:
                self._values -= self._waiting.pop(key).values
        return overdue
