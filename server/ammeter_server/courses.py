"""Runs as they are compared, read from their stored chunks. A judge keeps what it has read and reads on from there."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from ammeter.merging import lives
from ammeter.verdicts.course import COLUMNS, Course, Reading
from ammeter_server.store import Row, Store, series

SAID = ("autocast.entered", "values.logged")
"""Events that a course is made of, beside the rows."""

READ = series.Wanted(COLUMNS)
"""Columns that it is made of."""

MOST_STEPS = 4_000_000
"""Steps of all courses that are kept, at some 80 bytes each."""


def course(store: Store, run: Row[Any]) -> Course:
    """The course of the run, however long that takes."""
    found = Courses().of(store, run)
    assert found is not None  # for nothing bounds the reading
    return found


@dataclass
class Partly:
    """A stream as far as it was read. events: the number of the next one."""

    reading: Reading = field(default_factory=Reading)
    events: int = 0


class Courses:
    """What was read of runs lately. For one thread."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], Partly] = OrderedDict()

    def of(self, store: Store, run: Row[Any], until: float = math.inf) -> Course | None:
        """The course of the run's lowest rank in its first life; None where there is more to read than could be read
        until that reading of the monotonic clock."""
        with store.reading() as connection:
            known = lives(series.lives(connection, run.id))
        life = known[0][0] if known else None
        partly = self._partly(run.id, life.stream) if life else Partly()
        if life and not _read_on(store, run.id, life.stream, partly, until):
            return None
        over = life is None or life.ended is not None
        return partly.reading.course(over, run.name or run.id, run.config, run.environment, run.world_size)

    def _partly(self, run: str, stream: str) -> Partly:
        partly = self._known.setdefault((run, stream), Partly())
        self._known.move_to_end((run, stream))
        while sum(each.reading.last_step for each in self._known.values()) > MOST_STEPS and len(self._known) > 2:
            self._known.popitem(last=False)
        return partly


def _read_on(store: Store, run: str, stream: str, partly: Partly, until: float) -> bool:
    """Reads what is new. Returns whether that was all."""
    for view in series.views(store, run, stream, partly.reading.last_step + 1, None, READ):
        partly.reading.add(view)
        if time.monotonic() > until:
            return False
    with store.reading() as connection:
        for number, name, step, data in series.said(connection, run, stream, SAID, partly.events):
            partly.reading.event(name, step, data)
            partly.events = number + 1
    return True
