"""Caches the JSON of runs by everything that it was made from."""

from __future__ import annotations

import threading
from typing import Any

from cachetools import LRUCache

MAX_BYTES = 8 * 2**20
"""Maximum bytes of JSON: some thousand runs, or those with the largest configs."""


class EncodedRuns:
    """The JSON of runs that were read recently. Thread-safe.

    A key contains the marks of all rows that a run's JSON is made from, so that an entry is never outdated: a run that
    changed has another key. Callers read the marks in the tables with every request.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: LRUCache[tuple[Any, ...], bytes] = LRUCache(MAX_BYTES, len)

    def get(self, key: tuple[Any, ...]) -> bytes | None:
        with self._lock:
            return self._known.get(key)

    def put(self, key: tuple[Any, ...], encoded: bytes) -> None:
        if len(encoded) <= MAX_BYTES:
            with self._lock:
                self._known[key] = encoded
