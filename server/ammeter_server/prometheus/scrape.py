"""One scrape of /metrics: the current content of the tables as text.

Each scrape reads and renders running runs again. Finished runs do not change, so their text is cached until one of
their rows is written. Each scrape checks this in the tables; the cache never replaces them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

from ammeter_server.config.prices import Prices
from ammeter_server.db import Connection, Store
from ammeter_server.db.queries import metrics as query
from ammeter_server.prometheus.exposition import Exposition, RunSamples, text
from ammeter_server.prometheus.samples import add_fleet, add_incidents, add_run

COUNTERS_STAY = 5 * 60 * 10**9
INFO_STAYS = 3600 * 10**9
"""Nanoseconds for which a finished run's numbers, and its description, stay on /metrics: long enough for the last
scrapes to see the final numbers."""


class _Run(NamedTuple):
    """The samples of one run and its sort key; the oldest run is first."""

    started: int
    id: str
    told: RunSamples


class Scrape:
    """The scrapes of one process, one at a time."""

    def __init__(self, store: Store, prices: Prices = ()) -> None:
        self._store = store
        self._prices = prices
        self._over: dict[tuple[Any, ...], _Run] = {}

    def text(self, now: int, is_open: bool) -> Iterator[bytes]:
        """Yields the text in pieces, without OpenMetrics' end line.

        All database queries finish before the first piece.
        """
        with self._store.reading() as connection:
            query.snapshot(connection)
            live = query.live(connection)
            self._over = self._those_over(connection, now)
            incidents = query.incidents_since(connection, now - COUNTERS_STAY)
            totals = query.fleet(connection)
        going = [self._told(run, streams, now) for run, streams in live]
        of_all = Exposition()
        add_incidents(of_all, incidents)
        add_fleet(of_all, totals)
        several = sorted(chain(going, self._over.values()), key=lambda run: (run.started, run.id))
        yield from text([*(run.told for run in several), of_all.told], is_open)

    def _those_over(self, connection: Connection, now: int) -> dict[tuple[Any, ...], _Run]:
        """The text of runs that ended recently.

        The key is the mark of the run's rows and whether the run's counters have expired.
        """
        found = {
            run: (ended < now - COUNTERS_STAY, mark) for run, ended, mark in query.marks(connection, now - INFO_STAYS)
        }
        missing = [run for run, mark in found.items() if mark not in self._over]
        new = {
            found[run.id]: self._told(run, streams, now, only_what=found[run.id][0])
            for run, streams in query.with_ids(connection, missing)
        }
        return {mark: self._over.get(mark) or new[mark] for mark in found.values()}

    def _told(self, run: Any, streams: Any, now: int, *, only_what: bool = False) -> _Run:
        shown = Exposition()
        add_run(shown, run, streams, now, only_what=only_what, prices=self._prices)
        return _Run(run.started, run.id, shown.told)
