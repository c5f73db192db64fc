"""Thousands of batches over a bad proxy, to collectors that are killed: what is stored, counted and found is what was
sent, once, and what it is where nothing goes wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ammeter_server.db import Connection, Store, connect, tables
from tests.e2e import stored
from tests.e2e.faulty_proxy import FATES, FaultyProxy
from tests.e2e.processes import Collector, wait_for
from tests.e2e.recorded_streams import (
    PROJECT,
    RUNS,
    RecordedStream,
    Sender,
    all_at_once,
    collector_client,
    holds_what_was_sent,
    written,
)
from tests.server.databases import postgresql

pytestmark = pytest.mark.long

BATCHES = 2400
BATCHES_PER_STREAM = 160
EACH_FATE = 30
"""Requests at least that meet each fate of the proxy."""

SEED = 20
KILLS = 6
SHORT_LEASE = {"ammeter_server.judging.judge.LEASE_NS": 5 * 10**9}
"""A run that a killed collector was judging is judged by another one after this."""

UNTIL = 0.6
"""Share of the batches that has been taken when the last collector is killed: runs that it was judging are judged again
once its lease has ended."""

PATIENCE = 200.0

BY_THE_CLOCK = frozenset({"run-lost", "run-stalled"})
"""Verdicts on how long nothing was heard, which is longer where a collector is down."""


@dataclass(frozen=True)
class Outcome:
    """What a database says in the end, by run; and the fleet's counters of runs and steps."""

    streams: dict[str, Any]
    findings: dict[str, Any]
    incidents: dict[str, Any]
    states: dict[str, Any]
    totals: dict[tuple[str, str, str], int]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[RecordedStream]:
    return written(tmp_path_factory.mktemp("journals"))


@pytest.fixture(scope="module")
def undisturbed(recorded: list[RecordedStream], tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Of the same streams, sent one after the other in a few batches to a collector that nobody disturbs."""
    collector = Collector(tmp_path_factory.mktemp("undisturbed")).start()
    try:
        for stream in recorded:
            Sender(stream, collector_client(collector.url), 20, restless=False).send_all()
        return outcome(collector.database_url, recorded, collector.log)
    finally:
        collector.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def collectors(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Collector]]:
    """One on SQLite, or three on a PostgreSQL."""
    with ExitStack() as stack:
        url, count = "", 1
        if request.param == "postgresql":
            url, count = stack.enter_context(postgresql()), 3
        made = []
        for number in range(count):
            folder = tmp_path / str(number)
            folder.mkdir()
            made.append(Collector(folder, database_url=url, constants=SHORT_LEASE))
            stack.callback(made[-1].stop)
        all_at_once([collector.start for collector in made])
        yield made


def test_every_frame_is_stored_once_and_what_is_found_is_what_an_undisturbed_run_has(
    collectors: list[Collector], recorded: list[RecordedStream], undisturbed: Outcome
) -> None:
    proxy = FaultyProxy([collector.port for collector in collectors], SEED)
    try:
        senders = [Sender(stream, collector_client(proxy.url), BATCHES_PER_STREAM) for stream in recorded]
        all_at_once([lambda: kill_now_and_then(collectors, senders), *(sender.send_all for sender in senders)])
    finally:
        proxy.stop()
    assert BATCHES <= sum(sender.taken for sender in senders)
    assert set(FATES) == set(proxy.counts)
    assert EACH_FATE <= min(proxy.counts.values())
    found = outcome(collectors[0].database_url, recorded, lambda: "".join(collector.log() for collector in collectors))
    with stored.opened(collectors[0].database_url) as database:
        for stream in recorded:
            holds_what_was_sent(database, stream)
    assert undisturbed.streams == found.streams
    assert undisturbed.findings == found.findings
    assert undisturbed.incidents == found.incidents
    assert undisturbed.states == found.states
    assert undisturbed.totals == found.totals
    assert [] == [collector.log() for collector in collectors if "Traceback" in collector.log(10**7)]


def kill_now_and_then(collectors: Sequence[Collector], senders: Sequence[Sender]) -> None:
    """kill -9 of one after the other, at moments that the seed says, and a new one in its place."""
    dice = random.Random(SEED)
    for number in range(KILLS):
        due = (number + dice.random()) * UNTIL * BATCHES / KILLS
        wait_for(lambda at=due: sum(sender.taken for sender in senders) >= at, "enough is taken", seconds=PATIENCE)  # type: ignore[misc]
        killed = dice.choice(collectors)
        killed.kill()
        killed.start()


def outcome(url: str, recorded: Sequence[RecordedStream], explain: Callable[[], str]) -> Outcome:
    """What the database says once every run has ended and nothing about it is left to be judged."""
    runs = sorted({stream.run for stream in recorded})
    with closing(connect(url)) as store:
        wait_for(lambda: all(settled(store, run) for run in runs), "every run is settled", explain, PATIENCE)
    with stored.opened(url) as database:
        return Outcome(
            {run: stored.streams(database, run) for run in runs},
            {run: stored.findings(database, run, BY_THE_CLOCK) for run in runs},
            {run: stored.incidents(database, run, BY_THE_CLOCK) for run in runs},
            {run: stored.state(database, run) for run in runs},
            fleet(database, runs),
        )


def settled(store: Store, run: str) -> bool:
    with store.reading() as database:
        row = database.execute(tables.runs.select().where(tables.runs.c.id == run)).one_or_none()
        version = sum(row.version for row in stored.table(database, tables.streams, run))
    return row is not None and (row.state, row.claimed_by, row.judged_version) == ("ended", None, version)


def fleet(database: Connection, runs: Sequence[str]) -> dict[tuple[str, str, str], int]:
    """The fleet's counters of runs and steps. That of incidents has to be as many as there are, those that another one
    took over as well."""
    found = stored.totals(database, PROJECT)
    opened = sum(len(stored.table(database, tables.incidents, run)) for run in runs)
    assert opened == sum(found.pop(key) for key in list(found) if key[0] == "incidents")
    return found


def test_the_runs_that_are_sent_have_all_kinds_of_ends(undisturbed: Outcome, recorded: list[RecordedStream]) -> None:
    """What would be compared otherwise: nothing with nothing."""
    assert len(RUNS) == len(undisturbed.states)
    assert {"ended"} == set(undisturbed.states.values())
    found = {incident["verdict"] for several in undisturbed.incidents.values() for incident in several}
    assert {"overflow-storm", "ranks-disagree", "nonfinite-loss", "gradient-underflow", "agent-blind"} <= found
    assert 16 == len(recorded)
