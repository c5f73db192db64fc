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
from ammeter_server.prometheus.exposition import Exposition, Lines, RunSamples, text
from ammeter_server.prometheus.samples import add_fleet, add_incidents, add_run

COUNTERS_STAY_NS = 5 * 60 * 10**9
INFO_STAYS_NS = 3600 * 10**9
"""For which a finished run's numbers, and its description, stay on /metrics: long enough for the last
scrapes to see the final numbers."""


class _Run(NamedTuple):
    """The samples of one run and its sort key; the oldest run is first."""

    started: int
    id: str
    samples: RunSamples


class Scrape:
    """The scrapes of one process, one at a time."""

    def __init__(self, store: Store, prices: Prices = ()) -> None:
        self._store = store
        self._prices = prices
        self._finished: dict[tuple[Any, ...], _Run] = {}
        self._lines: dict[str, Lines] = {}
        """The lines of each live run in the last scrape."""

    def text(self, now: int, is_open: bool) -> Iterator[bytes]:
        """Yields the text in pieces, without OpenMetrics' end line.

        All database queries finish before the first piece.
        """
        with self._store.reading() as connection:
            query.snapshot(connection)
            live = query.live(connection)
            self._finished = self._finished_runs(connection, now)
            incidents = query.incidents_since(connection, now - COUNTERS_STAY_NS)
            totals = query.fleet(connection)
        running = [self._render(run, streams, now) for run, streams in live]
        self._lines = {run.id: self._lines[run.id] for run, _ in live}
        fleet = Exposition()
        add_incidents(fleet, incidents)
        add_fleet(fleet, totals)
        runs = sorted(chain(running, self._finished.values()), key=lambda run: (run.started, run.id))
        yield from text([*(run.samples for run in runs), fleet.samples], is_open)

    def _finished_runs(self, connection: Connection, now: int) -> dict[tuple[Any, ...], _Run]:
        """The text of runs that ended recently.

        The key is the mark of the run's rows and whether the run's counters have expired.
        """
        keys = {
            run: (ended < now - COUNTERS_STAY_NS, mark)
            for run, ended, mark in query.marks(connection, now - INFO_STAYS_NS)
        }
        missing = [run for run, key in keys.items() if key not in self._finished]
        new = {
            keys[run.id]: self._render(run, streams, now, info_only=keys[run.id][0])
            for run, streams in query.with_ids(connection, missing)
        }
        return {key: self._finished.get(key) or new[key] for key in keys.values()}

    def _render(self, run: Any, streams: Any, now: int, *, info_only: bool = False) -> _Run:
        exposition = Exposition(self._lines.get(run.id, {}))
        add_run(exposition, run, streams, now, info_only=info_only, prices=self._prices)
        self._lines[run.id] = exposition.lines
        return _Run(run.started, run.id, exposition.samples)
