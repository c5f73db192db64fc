"""Caches the parsed rows of recent streams in a collector process.

The row is selected for every batch all the same: a cached stream is valid while the row is byte for byte the same.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from ammeter.wire.frames import Schema
from ammeter_server.db.queries.streams import Raw, StreamState

MAX_CACHED_STREAMS = 4_096
MAX_CACHED_TENSORS = 300_000
"""Of all cached streams together: about 100 MB where no two streams share a schema."""


Place = tuple[str | None, str, str]
"""Key of the cache: the project of the sender's token, and the run and stream that it names."""


@dataclass(frozen=True)
class CachedStream:
    """A stream as this process has left it.

    Attributes:
        raw: The row as the driver returns it; None for a stream without a row.
        state: The parsed row.
        schema: The schema in force at the end of the stream.
        decoded: Verdict -> (its packed state, the decoded state).
    """

    raw: Raw | None
    state: StreamState
    schema: Schema | None = None
    decoded: dict[str, tuple[bytes, Any]] = field(default_factory=dict)


class StreamCache:
    """The most recently used streams. Thread-safe."""

    def __init__(self) -> None:
        self._streams: OrderedDict[Place, CachedStream] = OrderedDict()
        self._tensors = 0
        self._lock = threading.Lock()

    def get(self, run: str, stream: str, project: str | None = None) -> CachedStream | None:
        return self._streams.get((project, run, stream))

    def keep(self, cached: CachedStream, run: str | None = None, project: str | None = None) -> None:
        """Stores a stream. run: the id that its sender uses, where the run has another id here."""
        place = (project, run or cached.state.run, cached.state.id)
        with self._lock:
            self._drop(place)
            self._streams[place] = cached
            self._tensors += _tensors(cached)
            while len(self._streams) > MAX_CACHED_STREAMS or (
                self._tensors > MAX_CACHED_TENSORS and len(self._streams) > 1
            ):
                self._drop(next(iter(self._streams)))

    def forget(self, run: str, stream: str, project: str | None = None) -> None:
        with self._lock:
            self._drop((project, run, stream))

    def _drop(self, place: Place) -> None:
        cached = self._streams.pop(place, None)
        self._tensors -= _tensors(cached) if cached else 0


def _tensors(cached: CachedStream) -> int:
    return len(cached.schema.tensors) if cached.schema else 0
