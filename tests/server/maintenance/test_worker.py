from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from ammeter_server.config.settings import Settings
from ammeter_server.context import AppContext
from ammeter_server.db import Store, connect
from ammeter_server.db.step_tables import chunks, segments
from ammeter_server.maintenance import worker
from ammeter_server.maintenance.compaction import MIN_SMALL_BLOCKS
from ammeter_server.maintenance.worker import MaintenanceWorker
from ammeter_server.process import memory
from tests.server.feeding import wait_until
from tests.server.keeping import SCHEMA, Fed, contents, database, numbers


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with database("sqlite", tmp_path) as store:
        yield store


def counted(store: Store) -> tuple[int, int]:
    """(blocks, segments)"""
    with store.reading() as connection:
        found = [
            connection.execute(select(func.count()).select_from(table)).scalar_one() for table in (chunks, segments)
        ]
    return found[0], found[1]


def test_a_stream_that_has_ended_is_compacted_by_itself(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PAUSE_SECONDS", 0.05)
    mine = MaintenanceWorker(AppContext(Settings(), store))
    mine.start()
    try:
        fed = Fed(store)
        fed.feed(numbers(SCHEMA, 2000), 100)
        fed.end()
        wait_until(lambda: counted(store) == (0, 1))
    finally:
        mine.stop()
    mine.stop()
    assert contents(fed.fed) == contents(fed.views())


def test_streams_with_nothing_new_are_let_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(worker, "compact", lambda _store, _run, stream, *_: asked.append(stream))
    fed = Fed(store)
    mine = MaintenanceWorker(AppContext(Settings(), store))
    for rows, times in ((MIN_SMALL_BLOCKS - 1, 0), (1, 1), (MIN_SMALL_BLOCKS - 1, 1), (1, 2)):
        fed.feed(numbers(SCHEMA, rows), 1)
        mine.compact_due(time.time_ns())
        mine.compact_due(time.time_ns())
        assert [fed.stream] * times == asked


def test_a_stream_that_cannot_be_compacted_is_logged_and_the_others_go_on(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    broken, whole = Fed(store), Fed(store)
    for fed in (broken, whole):
        fed.feed(numbers(SCHEMA, 2000), 100)
        fed.end()
    with store.writing() as connection:
        connection.execute(chunks.update().where(chunks.c.run == broken.run).values(data=b"no block"))
    MaintenanceWorker(AppContext(Settings(), store)).compact_due(time.time_ns())
    assert f"compaction of run {broken.run} failed" in caplog.text
    assert (20, 1) == counted(store)
    assert contents(whole.fed) == contents(whole.views())


def test_a_round_outlives_a_database_that_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = connect(f"sqlite:///{tmp_path / 'no-tables.db'}")
    MaintenanceWorker(AppContext(Settings(keep_days=1), store)).run_round(time.time_ns())
    assert "compaction failed; the next round retries it" in caplog.text
    assert "retention failed; the next round retries it" in caplog.text
    store.close()


def test_what_is_too_old_goes_while_the_collector_runs(store: Store) -> None:
    Fed(store).feed(numbers(SCHEMA, 10), 5)
    later = time.time_ns() + 5 * 86_400 * 10**9
    MaintenanceWorker(AppContext(Settings(keep_days=9), store)).run_round(later)
    assert (2, 0) == counted(store)
    MaintenanceWorker(AppContext(Settings(keep_days=2), store)).run_round(later)
    assert (0, 0) == counted(store)


def test_unused_memory_is_returned_once_a_minute(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed: list[int] = []
    monkeypatch.setattr(memory, "trim", lambda: trimmed.append(1))
    mine, now = MaintenanceWorker(AppContext(Settings(), store)), time.time_ns()
    for seconds in (0, 1, 59, 60, 61, 120):
        mine.run_round(now + seconds * 10**9)
    assert 3 == len(trimmed)
