"""Runs as they are compared, read from their stored chunks. A judge keeps what it has read and reads on from there."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ammeter.verdicts.framework.run_history import EVENTS, Reading, RunHistory, joined
from ammeter.wire.ranks import lives
from ammeter_server.db import Row, Store
from ammeter_server.db.queries import series
from ammeter_server.runs.run_chain import line_of

MAX_CACHED_STEPS = 4_000_000
"""Steps of all courses that are kept, at some 80 bytes each."""


def history_of(store: Store, run: Row[Any], metrics: Sequence[str] = ()) -> RunHistory:
    """The course of the run, however long that takes."""
    found = RunHistoryCache().of(store, run, metrics=metrics)
    assert found is not None  # for nothing bounds the reading
    return found


@dataclass
class PartialHistory:
    """A stream as far as it was read. events: the number of the next one."""

    reading: Reading = field(default_factory=Reading)
    events: int = 0


class RunHistoryCache:
    """What was read of runs lately. For one thread."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], PartialHistory] = OrderedDict()

    def of(
        self, store: Store, run: Row[Any], until: float = math.inf, metrics: Sequence[str] = ()
    ) -> RunHistory | None:
        """The course of the run's lowest rank over all its lives, and over those of the runs that it continues and that
        continue it; None where there is more to read than could be read until that reading of the monotonic clock.

        metrics: columns beside those of every course.
        """
        with store.reading() as connection:
            line = [row for row in line_of(connection, run.id) if row.project == run.project] or [run]
            known = [(row.id, life) for row in line for life in lives(series.lives(connection, row.id))]
        lowest = min((life[0].rank for _, life in known), default=0)
        compared = [(row, life[0]) for row, life in known if life[0].rank == lowest]
        readings = []
        for row, life in compared:
            partly = self._partly(row, life.stream, tuple(metrics))
            if not _read_new(store, row, life.stream, partly, until):
                return None
            readings.append(partly.reading)
        over = not compared or compared[-1][1].ended is not None
        first = line[0]  # what a run was given is what it began with
        return joined(
            readings, over, run.name or run.id, first.config, first.environment or {}, first.world_size, run.tags
        )

    def _partly(self, run: str, stream: str, metrics: tuple[str, ...]) -> PartialHistory:
        partly = self._known.get((run, stream))
        if partly is None or not {*metrics} <= {*partly.reading.names}:
            partly = self._known[run, stream] = PartialHistory(Reading(f"{run}/{stream}", metrics))
        self._known.move_to_end((run, stream))
        while sum(kept.reading.last_step for kept in self._known.values()) > MAX_CACHED_STEPS and len(self._known) > 2:
            self._known.popitem(last=False)
        return partly


def _read_new(store: Store, run: str, stream: str, partly: PartialHistory, until: float) -> bool:
    """Reads what is new. Returns whether that was all."""
    wanted = series.Wanted(partly.reading.names)
    for view in series.views(store, run, stream, partly.reading.last_step + 1, None, wanted):
        partly.reading.add(view)
        if time.monotonic() > until:
            return False
    with store.reading() as connection:
        for number, name, step, data in series.said(connection, run, stream, EVENTS, partly.events):
            partly.reading.event(name, step, data)
            partly.events = number + 1
    return True
