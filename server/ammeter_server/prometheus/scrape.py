"""One scrape of /metrics: the current content of the tables as text.

The text of a run is cached until one of its rows is written. Each scrape checks this in the tables; the cache never
replaces them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ammeter_server.config.prices import Prices
from ammeter_server.db import Store
from ammeter_server.db.queries import metrics as query
from ammeter_server.db.queries.runs import snapshot
from ammeter_server.prometheus.exposition import Exposition, Lines, RunSamples, text
from ammeter_server.prometheus.samples import add_fleet, add_incidents, add_run
from ammeter_server.runs.rank_totals import REPORTING_NS

COUNTERS_STAY_NS = 5 * 60 * 10**9
INFO_STAYS_NS = 3600 * 10**9
"""For which a finished run's numbers, and its description, stay on /metrics: long enough for the last
scrapes to see the final numbers."""


_Key = tuple[bool, query.Mark]


class _Run(NamedTuple):
    """The text of one run.

    Attributes:
        key: Whether its counters have expired, and the mark of its rows. While it is unchanged, so is the text.
        place: Sorts runs; the oldest is first.
        lines: The single lines of a running run, most of which are the same next time.
    """

    key: _Key
    place: tuple[int, str]
    samples: RunSamples
    lines: Lines


class Scrape:
    """The scrapes of one process, one at a time."""

    def __init__(self, store: Store, prices: Prices = ()) -> None:
        self._store = store
        self._prices = prices
        self._runs: dict[str, _Run] = {}
        self._fleet: tuple[Any, RunSamples] = ((), {})
        """The rows of incidents and the fleet, and their text."""

    def text(self, now: int, is_open: bool) -> Iterator[bytes]:
        """Yields the text in pieces, without OpenMetrics' end line.

        All database queries finish before the first piece.
        """
        with self._store.reading() as connection:
            snapshot(connection)
            marks = query.marks(connection, now - INFO_STAYS_NS, now - REPORTING_NS)
            keys = {run: (ended is not None and ended < now - COUNTERS_STAY_NS, mark) for run, ended, mark in marks}
            unchanged = {run: self._runs[run] for run, key in keys.items() if self._is_known(run, key)}
            changed = list(query.with_ids(connection, [run for run in keys if run not in unchanged]))
            incidents = query.incidents_since(connection, now - COUNTERS_STAY_NS)
            totals = query.fleet(connection)
        self._runs = unchanged | {run.id: self._render(keys[run.id], run, streams, now) for run, streams in changed}
        if self._fleet[0] != (incidents, totals):
            fleet = Exposition()
            add_incidents(fleet, incidents)
            add_fleet(fleet, totals)
            self._fleet = (incidents, totals), fleet.samples
        runs = sorted(self._runs.values(), key=lambda run: run.place)
        yield from text([*(run.samples for run in runs), self._fleet[1]], is_open)

    def _is_known(self, run: str, key: _Key) -> bool:
        return run in self._runs and self._runs[run].key == key

    def _render(self, key: _Key, run: Any, streams: Any, now: int) -> _Run:
        exposition = Exposition(self._runs[run.id].lines if run.id in self._runs else {})
        add_run(exposition, run, streams, now, info_only=key[0], prices=self._prices)
        lines = exposition.lines if run.state == "running" else {}
        return _Run(key, (run.started, run.id), exposition.samples, lines)
