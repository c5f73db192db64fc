"""Histories of runs for comparisons, read from stored chunks.

The cache keeps what was read, so that a judge reads only new data.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ammeter.verdicts.framework.run_history import EVENTS, LifeReader, RunHistory, join_lives
from ammeter.wire.ranks import lives
from ammeter_server.db import Row, Store
from ammeter_server.db.queries import events
from ammeter_server.db.queries.steps.rows import views
from ammeter_server.db.queries.steps.sources import stored_lives
from ammeter_server.db.queries.steps.stream_info import ColumnSelection
from ammeter_server.runs.run_chain import chain_of

MAX_CACHED_STEPS = 4_000_000
"""Steps of all cached histories, at about 80 bytes each."""


def history_of(store: Store, run: Row[Any], metrics: Sequence[str] = ()) -> RunHistory:
    """Returns the run's history, without a time limit."""
    history = RunHistoryCache().of(store, run, metrics=metrics)
    assert history is not None  # there is no deadline
    return history


@dataclass
class PartialHistory:
    """The part of a stream that was read. events: number of the next event."""

    reading: LifeReader = field(default_factory=LifeReader)
    events: int = 0


class RunHistoryCache:
    """Caches the histories of recent runs. For one thread."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], PartialHistory] = OrderedDict()

    def of(
        self, store: Store, run: Row[Any], until: float = math.inf, metrics: Sequence[str] = ()
    ) -> RunHistory | None:
        """Returns the history of the run's lowest rank over all attempts of its chain.

        The chain includes the runs that it continues and those that continue it.

        Args:
            store: The database.
            run: The run's row.
            until: Deadline of the reading, on the monotonic clock.
            metrics: Columns beside those of every history.

        Returns:
            The history; None if the deadline passed before all was read.
        """
        with store.reading() as connection:
            line = [row for row in chain_of(connection, run.id) if row.project == run.project] or [run]
            known = [(row.id, life) for row in line for life in lives(stored_lives(connection, row.id))]
        lowest = min((life[0].rank for _, life in known), default=0)
        compared = [(row, life[0]) for row, life in known if life[0].rank == lowest]
        readings = []
        for row, life in compared:
            partly = self._partly(row, life.stream, tuple(metrics))
            if not _read_new(store, row, life.stream, partly, until):
                return None
            readings.append(partly.reading)
        over = not compared or compared[-1][1].ended is not None
        first = line[0]  # the first run has the configuration of the chain
        return join_lives(
            readings, over, run.name or run.id, first.config, first.environment or {}, first.world_size, run.tags
        )

    def _partly(self, run: str, stream: str, metrics: tuple[str, ...]) -> PartialHistory:
        partly = self._known.get((run, stream))
        if partly is None or not {*metrics} <= {*partly.reading.names}:
            partly = self._known[run, stream] = PartialHistory(LifeReader(f"{run}/{stream}", metrics))
        self._known.move_to_end((run, stream))
        while (
            sum(cached.reading.last_step for cached in self._known.values()) > MAX_CACHED_STEPS and len(self._known) > 2
        ):
            self._known.popitem(last=False)
        return partly


def _read_new(store: Store, run: str, stream: str, partly: PartialHistory, until: float) -> bool:
    """Reads new data. Returns whether all was read before the deadline."""
    wanted = ColumnSelection(partly.reading.names)
    for view in views(store, run, stream, partly.reading.last_step + 1, None, wanted):
        partly.reading.add(view)
        if time.monotonic() > until:
            return False
    with store.reading() as connection:
        for number, name, step, data in events.of_names(connection, run, stream, EVENTS, partly.events):
            partly.reading.event(name, step, data)
            partly.events = number + 1
    return True
