"""Caches the streams that a collector process has written last."""

from __future__ import annotations

import threading
from typing import NamedTuple

from cachetools import LRUCache

from ammeter_server.ingest.registration import IngestRequest
from ammeter_server.ingest.stream_update import CachedStream

MAX_CACHED_STREAMS = 4_096
MAX_CACHED_TENSORS = 73 * MAX_CACHED_STREAMS
"""Of all cached streams together: about 100 MB where no two streams share a schema."""


class StreamKey(NamedTuple):
    """The project of the sender's token, and the run and stream that the sender names."""

    project: str | None
    run: str
    stream: str

    @classmethod
    def of(cls, request: IngestRequest) -> StreamKey:
        return cls(request.project, request.sender_run, request.stream)


class StreamCache:
    """The most recently used streams of one process. Thread-safe.

    The row is selected for every batch all the same: a cached stream is valid while the row is byte for byte the same.
    """

    def __init__(self) -> None:
        self._streams: LRUCache[StreamKey, CachedStream] = LRUCache(MAX_CACHED_TENSORS, _tensors)
        self._lock = threading.Lock()

    def get(self, key: StreamKey) -> CachedStream | None:
        with self._lock:
            return self._streams.get(key)

    def put(self, key: StreamKey, stream: CachedStream) -> None:
        with self._lock:
            self._streams[key] = stream

    def remove(self, key: StreamKey) -> None:
        with self._lock:
            self._streams.pop(key, None)


def _tensors(cached: CachedStream) -> int:
    """The size of a cached stream; the minimum limits the number of streams."""
    return max(len(cached.schema.tensors) if cached.schema else 0, MAX_CACHED_TENSORS // MAX_CACHED_STREAMS)
