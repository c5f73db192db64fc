from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import select, update

from ammeter import verdicts
from ammeter.shipper.answers import MAX_BACKOFF_SECONDS
from ammeter.wire import columns, frames
from ammeter_server.db import Connection, Store, connect, migrations
from ammeter_server.db.queries import streams
from ammeter_server.db.tables import findings, runs, schemas
from ammeter_server.db.tables import streams as table
from ammeter_server.judging.silent_streams import RETRY_NS, SILENCE_NS, TICK_NS, Clock, tick

NOW = 10**18
SECOND = 10**9
SCHEMA = frames.Schema(("loss",))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = connect(f"sqlite:///{tmp_path / 'c.db'}")
    migrations.migrate(store)
    yield store
    store.close()


def add_stream(store: Store, last_seen: int, **said: Any) -> str:
    run, stream = str(uuid.uuid4()), uuid.uuid4().hex
    with store.writing() as connection:
        connection.execute(runs.insert().values(id=run, name="night", started=1))
        given = {"run": run, "id": stream, "schema": SCHEMA.id, "last_seen": last_seen, "host": "node-7", "started": 1}
        connection.execute(table.insert().values(given | said))
        body = msgspec.msgpack.encode(SCHEMA)
        connection.execute(schemas.insert().values(run=run, stream=stream, id=SCHEMA.id, body=body))
    return stream


def found(store: Store) -> list[tuple[str, bool]]:
    with store.reading() as connection:
        return [(row.verdict, row.active) for row in connection.execute(select(findings))]


def test_a_stream_that_nobody_speaks_for_is_lost(store: Store) -> None:
    add_stream(store, NOW)
    assert not tick(store, NOW + SILENCE_NS, 0)
    assert tick(store, NOW + SILENCE_NS + SECOND, 0)
    assert [("run-lost", True)] == found(store)
    assert not tick(store, NOW + SILENCE_NS + 9 * SECOND, 0)


def test_a_stream_that_is_heard_again_is_not_lost(store: Store) -> None:
    stream = add_stream(store, NOW)
    tick(store, NOW + 2 * SILENCE_NS, 0)
    with store.writing() as connection:
        connection.execute(update(table).where(table.c.id == stream).values(last_seen=NOW + 3 * SILENCE_NS))
    assert tick(store, NOW + 3 * SILENCE_NS + SECOND, 0)
    assert [("run-lost", False)] == found(store)


def test_a_stream_that_said_goodbye_may_be_silent(store: Store) -> None:
    add_stream(store, NOW, bye_reason="closed")
    assert not tick(store, NOW + 10 * SILENCE_NS, 0)
    assert [] == found(store)


def stalling(store: Store, **said: Any) -> str:
    """A stream that made ten steps, the last at NOW, and is spoken for ever since."""
    stream = add_stream(store, NOW, last_step_time=NOW, **said)
    rows = [frames.Steps(step, NOW - (9 - step) * SECOND, b"") for step in range(10)]
    hello = frames.Hello("run", stream, SCHEMA, host="node-7", pid=7)
    states = verdicts.judge({}, columns.view(SCHEMA, rows, [(0, hello)])).states
    with store.writing() as connection:
        change = update(table).where(table.c.id == stream)
        connection.execute(change.values(states=msgspec.msgpack.encode(states)))
    return stream


def ticked(store: Store, stream: str, seconds: range) -> bool:
    """Whether anything was concluded while the clock went on and heartbeats came."""
    told = False
    for second in seconds:
        now = NOW + second * SECOND
        with store.writing() as connection:
            connection.execute(update(table).where(table.c.id == stream).values(last_seen=now))
        told = tick(store, now, 0) or told
    return told


def test_a_stream_that_lives_and_makes_no_step_is_stalled(store: Store) -> None:
    stream = stalling(store)
    assert not ticked(store, stream, range(0, 960, 5))
    assert ticked(store, stream, range(960, 970, 5))
    assert [("run-stalled", True)] == found(store)


@pytest.mark.parametrize("said", [{"backlog": 900}, {"bye_reason": "closed"}, {"alive": False}])
def test_a_stream_that_is_behind_or_over_is_not_stalled(said: dict[str, Any], store: Store) -> None:
    assert not ticked(store, stalling(store, **said), range(0, 4000, 50))
    assert [] == found(store)


def test_the_collectors_own_silence_is_not_held_against_a_stream(store: Store) -> None:
    add_stream(store, NOW)
    restarted = NOW + 100 * SILENCE_NS
    assert not tick(store, restarted + SECOND, restarted)
    assert not tick(store, restarted + RETRY_NS + SILENCE_NS - SECOND, restarted)
    assert [] == found(store)
    assert tick(store, restarted + RETRY_NS + SILENCE_NS + SECOND, restarted)


def test_a_shipper_retries_within_the_pause_that_the_collector_allows_after_a_start() -> None:
    assert MAX_BACKOFF_SECONDS * 1e9 <= RETRY_NS


def test_a_stream_that_began_after_the_start_is_lost_without_that_pause(store: Store) -> None:
    add_stream(store, NOW)
    assert tick(store, NOW + SILENCE_NS + SECOND, NOW - SECOND)


def test_the_clock_begins_anew_after_a_start_and_after_a_long_stop() -> None:
    clock = Clock()
    looks = [NOW + number * SECOND for number in range(40)]
    due = [look for look in looks if clock.is_due(look)]
    assert NOW + SILENCE_NS == due[0]
    assert {TICK_NS} == {later - before for before, later in pairwise(due)}
    asleep = looks[-1] + SILENCE_NS
    assert not clock.is_due(asleep)
    assert asleep == clock.awake_since


def test_a_tick_that_changes_nothing_waits_for_no_writer(store: Store) -> None:
    add_stream(store, NOW)
    assert tick(store, NOW + SILENCE_NS + SECOND, 0)
    again = threading.Thread(target=tick, args=(store, NOW + 2 * SILENCE_NS, 0), daemon=True)
    with store.writing():
        again.start()
        again.join(10)
        assert not again.is_alive()


def test_what_comes_while_a_tick_is_judged_counts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = add_stream(store, NOW)
    look = streams.select_for_update

    def look_at_what_has_come(connection: Connection, run: str, name: str) -> Any:
        connection.execute(update(table).where(table.c.id == stream).values(last_seen=NOW + SILENCE_NS))
        return look(connection, run, name)

    monkeypatch.setattr(streams, "select_for_update", look_at_what_has_come)
    assert not tick(store, NOW + SILENCE_NS + SECOND, 0)
    assert [] == found(store)


def test_a_tick_writes_only_its_own_stream(store: Store) -> None:
    lost, other = add_stream(store, NOW), add_stream(store, NOW + SILENCE_NS)
    tick(store, NOW + SILENCE_NS + SECOND, 0)
    with store.reading() as connection:
        versions = dict(connection.execute(select(table.c.id, table.c.version)).all())
    assert {lost: 1, other: 0} == versions


def test_streams_of_runs_that_are_over_are_not_asked(store: Store) -> None:
    add_stream(store, NOW)
    with store.writing() as connection:
        connection.execute(update(runs).values(state="lost"))
    with store.reading() as connection:
        assert [] == streams.silent_streams(connection, NOW + 10 * SILENCE_NS)
