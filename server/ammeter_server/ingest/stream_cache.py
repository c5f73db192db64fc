"""What a collector process remembers of streams, so that nothing is read out of their rows that it has written there.

It never replaces a look at the row: what is remembered counts while the row is, byte for byte, as it was left.
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
"""Of all that are remembered: some 100 MB where no two have a schema in common."""


Place = tuple[str | None, str, str]
"""A token's project, and the run and the stream that it names."""


@dataclass(frozen=True)
class CachedStream:
    """A stream's row, raw and read; the schema in force at its end; verdict -> (its state packed, the state)."""

    raw: Raw | None
    held: StreamState
    schema: Schema | None = None
    decoded: dict[str, tuple[bytes, Any]] = field(default_factory=dict)


class StreamCache:
    """The streams that were heard of last, by who sends them: a token's project, the run and the stream that it names.

    For several threads.
    """

    def __init__(self) -> None:
        self._streams: OrderedDict[Place, CachedStream] = OrderedDict()
        self._tensors = 0
        self._lock = threading.Lock()

    def get(self, run: str, stream: str, project: str | None = None) -> CachedStream | None:
        return self._streams.get((project, run, stream))

    def keep(self, cached: CachedStream, run: str | None = None, project: str | None = None) -> None:
        """run: what its sender calls it, where that is not where it lies."""
        place = (project, run or cached.held.run, cached.held.id)
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
