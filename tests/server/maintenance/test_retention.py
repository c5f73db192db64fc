from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, func, select, text, update

from ammeter_server.config.settings import Settings
from ammeter_server.db import Store, partitions
from ammeter_server.db.step_tables import DAY_NS, PARTITIONED_TABLES, chunks, columns, events, segments
from ammeter_server.db.tables import findings, runs, streams, totals
from ammeter_server.maintenance.retention import retain
from tests.server.keeping import SCHEMA, Fed, database, numbers

TODAY = 20_000
BLOB = b"x" * 20_000


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with database(request.param, tmp_path) as store:
        for day in range(TODAY - 12, TODAY + 1, 4):
            assert partitions.prepare(store, day)
        yield store


def add_run(store: Store, *of_days: int, state: str = "ended", count: int = 1) -> str:
    """A run with something in every table on each of these days."""
    run, stream = str(uuid.uuid4()), uuid.uuid4().hex
    key = {"run": run, "stream": stream}
    with store.writing() as connection:
        connection.execute(runs.insert().values(id=run, state=state, started=min(of_days) * DAY_NS))
        connection.execute(streams.insert().values(run=run, id=stream, last_seen=max(of_days) * DAY_NS + 5))
        connection.execute(findings.insert().values(**key, verdict="v", body={}, updated=1))
        for day in of_days:
            for number in range(count):
                step = {"first_step": day * 1000 + number, "last_step": day * 1000 + number, "day": day, "rows": 1}
                connection.execute(chunks.insert().values(**key, **step, columns=1, received=day * DAY_NS, data=BLOB))
                connection.execute(segments.insert().values(**key, **step, parts=1, steps=b"", times=b""))
                here = {"part": 0, "first_step": step["first_step"], "day": day}
                connection.execute(columns.insert().values(**key, **here, head=b"", data=BLOB))
                connection.execute(events.insert().values(**key, number=step["first_step"], day=day))
    return run


def days_of(connection: Connection, run: str) -> list[set[int]]:
    return [set(connection.execute(select(t.c.day).where(t.c.run == run)).scalars()) for t in PARTITIONED_TABLES]


def test_what_is_older_than_is_kept_goes_from_every_table(store: Store) -> None:
    long = add_run(store, TODAY - 9, TODAY - 3, TODAY - 2, TODAY, state="running")
    old, young = add_run(store, TODAY - 9), add_run(store, TODAY - 1)
    with store.writing() as connection:
        connection.execute(totals.insert().values(project="p", name="runs", outcome="ended", verdict="", severity=""))
    retain(store, Settings(keep_days=2), TODAY)
    with store.reading() as connection:
        assert [{TODAY - 2, TODAY}] * 4 == days_of(connection, long)
        assert [{TODAY - 1}] * 4 == days_of(connection, young)
        assert {long, young} == set(connection.execute(select(runs.c.id)).scalars())
        assert {long, young} == set(connection.execute(select(findings.c.run)).scalars())
        assert 1 == connection.execute(select(func.count()).select_from(totals)).scalar_one()
    assert old not in {long, young}


def test_nothing_goes_unless_it_was_asked_for(store: Store) -> None:
    run = add_run(store, 1, TODAY - 9)
    retain(store, Settings(), TODAY)
    with store.reading() as connection:
        assert [{1, TODAY - 9}] * 4 == days_of(connection, run)


def test_a_run_that_may_still_go_on_stays_however_old(store: Store) -> None:
    run = add_run(store, TODAY - 9, state="running")
    retain(store, Settings(keep_days=2), TODAY)
    with store.reading() as connection:
        assert [run] == list(connection.execute(select(runs.c.id)).scalars())


def test_the_oldest_days_go_while_the_database_is_too_large(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    with store.reading() as connection:
        empty = partitions.used_bytes(connection)
    run = add_run(store, *(TODAY - day for day in (9, 6, 3, 0)), count=25)
    with store.reading() as connection:
        limit = empty + (partitions.used_bytes(connection) - empty) * 2 // 3
    retain(store, Settings(keep_bytes=limit), TODAY)
    with store.reading() as connection:
        left = days_of(connection, run)
        assert left[0] in ({TODAY - 6, TODAY - 3, TODAY}, {TODAY - 3, TODAY})
        assert left == [left[0]] * 4
        assert partitions.used_bytes(connection) <= limit
    with caplog.at_level(logging.WARNING):
        retain(store, Settings(keep_bytes=1), TODAY)
    assert "no data is older than today" in caplog.text
    with store.reading() as connection:
        assert [{TODAY}] * 4 == days_of(connection, run)


def test_a_day_that_somebody_reads_on_postgresql_is_tried_again_and_frames_come_in_meanwhile(store: Store) -> None:
    if store.is_sqlite:  # its readers have a snapshot, and hold up nobody
        run = add_run(store, TODAY - 9)
        with store.reading() as reading:
            reading.execute(select(chunks)).all()
            assert partitions.drop(store, TODAY)
            assert 1 == len(reading.execute(select(chunks).where(chunks.c.run == run)).all())
        return
    run = add_run(store, TODAY - 9)
    with store.reading() as reading:
        reading.execute(select(chunks)).all()
        assert not partitions.drop(store, TODAY)
        Fed(store).feed(numbers(SCHEMA, 10), 5)
    assert partitions.drop(store, TODAY)
    with store.reading() as connection:
        assert [set[int]()] * 4 == days_of(connection, run)


def test_the_room_of_days_that_are_gone_is_given_back(store: Store) -> None:
    add_run(store, TODAY - 9, count=100)
    with store.reading() as connection:
        before = size(connection)
    retain(store, Settings(keep_days=2), TODAY)
    with store.reading() as connection:
        assert before - 3_000_000 > size(connection)


def size(connection: Connection) -> int:
    """Bytes of the database's file, or of its tables."""
    if connection.dialect.name == "sqlite":
        asked = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
    else:
        asked = "SELECT pg_database_size(current_database())"
    return int(connection.execute(text(asked)).scalar_one())


def test_a_row_of_a_day_without_a_partition_is_kept_and_goes_like_any_other(store: Store) -> None:
    run = add_run(store, 5, TODAY)
    with store.reading() as connection:
        assert 5 == partitions.oldest(connection)
        assert [{5, TODAY}] * 4 == days_of(connection, run)
    assert partitions.drop(store, TODAY)
    with store.reading() as connection:
        assert TODAY == partitions.oldest(connection)


def test_a_run_that_was_delivered_late_is_kept_from_when_it_came(store: Store) -> None:
    run = add_run(store, TODAY - 9)
    with store.writing() as connection:
        connection.execute(update(streams).where(streams.c.run == run).values(last_seen=TODAY * DAY_NS))
    assert 0 == partitions.forget_runs(store, TODAY - 2)
    assert 1 == partitions.forget_runs(store, TODAY + 1)
