"""What a collector process remembers of streams, so that nothing is read out of their rows that it has written there.

It never replaces a look at the row: what is remembered counts while the row is, byte for byte, as it was left.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from ammeter.wire.frames import Schema
from ammeter_server.db.queries.streams import Held, Raw

MOST_STREAMS = 4_096
MOST_TENSORS = 300_000
"""Of all that are remembered: some 100 MB where no two have a schema in common."""


Place = tuple[str | None, str, str]
"""A token's project, and the run and the stream that it names."""


@dataclass(frozen=True)
class Known:
    """A stream's row, raw and read; the schema in force at its end; verdict -> (its state packed, the state)."""

    raw: Raw | None
    held: Held
    schema: Schema | None = None
    decoded: dict[str, tuple[bytes, Any]] = field(default_factory=dict)


class Kept:
    """The streams that were heard of last, by who sends them: a token's project, the run and the stream that it names.

    For several threads.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Place, Known] = OrderedDict()
        self._tensors = 0
        self._lock = threading.Lock()

    def get(self, run: str, stream: str, project: str | None = None) -> Known | None:
        return self._known.get((project, run, stream))

    def keep(self, known: Known, run: str | None = None, project: str | None = None) -> None:
        """run: what its sender calls it, where that is not where it lies."""
        place = (project, run or known.held.run, known.held.id)
        with self._lock:
            self._drop(place)
            self._known[place] = known
            self._tensors += _tensors(known)
            while len(self._known) > MOST_STREAMS or (self._tensors > MOST_TENSORS and len(self._known) > 1):
                self._drop(next(iter(self._known)))

    def forget(self, run: str, stream: str, project: str | None = None) -> None:
        with self._lock:
            self._drop((project, run, stream))

    def _drop(self, place: Place) -> None:
        known = self._known.pop(place, None)
        self._tensors -= _tensors(known) if known else 0


def _tensors(known: Known) -> int:
    return len(known.schema.tensors) if known.schema else 0
