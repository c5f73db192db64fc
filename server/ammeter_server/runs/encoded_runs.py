"""Caches the JSON of runs together with the marks of everything that it was made from."""

from __future__ import annotations

import threading

from cachetools import LRUCache

MAX_BYTES = 8 * 2**20
"""Maximum bytes of JSON and marks: some thousand runs, or those with the largest configs."""


class EncodedRuns:
    """The last JSON of each run that was read recently. Thread-safe.

    It is never outdated: callers read the marks in the tables with every request, and a run that changed has others.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: LRUCache[str, tuple[bytes, bytes]] = LRUCache(MAX_BYTES, lambda entry: sum(map(len, entry)))

    def get(self, run: str, marks: bytes) -> bytes | None:
        with self._lock:
            known, encoded = self._known.get(run, (b"", None))
        return encoded if known == marks else None

    def put(self, run: str, marks: bytes, encoded: bytes) -> None:
        if len(marks) + len(encoded) <= MAX_BYTES:
            with self._lock:
                self._known[run] = marks, encoded
