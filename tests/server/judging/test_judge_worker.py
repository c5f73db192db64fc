from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from ammeter_server.config.settings import Settings
from ammeter_server.context import AppContext
from ammeter_server.db import Store, connect, migrations
from ammeter_server.db.tables import incidents, runs
from ammeter_server.judging.judge import JudgeWorker
from tests.server.feeding import wait_until
from tests.server.judging.test_silent_streams import NOW, SECOND, add_stream


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = connect(f"sqlite:///{tmp_path / 'c.db'}")
    migrations.migrate(store)
    yield store
    store.close()


def test_the_worker_judges_runs_without_a_wakeup(store: Store) -> None:
    stream = add_stream(store, time.time_ns(), bye_reason="lost", bye={"reason": "lost", "time": 5}, version=1)
    worker = JudgeWorker(AppContext(Settings(), store), {})
    worker.start()
    try:
        wait_until(lambda: state(store) == "lost")
    finally:
        worker.stop()
    worker.stop()
    assert stream


def state(store: Store) -> str:
    with store.reading() as connection:
        return str(connection.execute(select(runs.c.state)).scalar_one())


def test_a_round_outlives_a_database_that_is_away(tmp_path: Path) -> None:
    store = connect(f"sqlite:///{tmp_path / 'no-tables.db'}")
    worker = JudgeWorker(AppContext(Settings(), store), {})
    worker.run_round(NOW)
    migrations.migrate(store)
    add_stream(store, NOW, bye_reason="closed", bye={"time": 5}, version=1)
    worker.run_round(NOW + 1)
    assert "ended" == state(store)
    worker.stop()
    store.close()


def test_a_lost_host_ends_its_run_as_lost_with_one_incident(store: Store) -> None:
    add_stream(store, NOW)
    worker = JudgeWorker(AppContext(Settings(), store), {})
    for second in range(0, 60, 5):
        worker.run_round(NOW + second * SECOND)
    worker.stop()
    assert "lost" == state(store)
    with store.reading() as connection:
        (incident,) = connection.execute(select(incidents)).all()
    assert ("run-lost", "open", "page") == (incident.verdict, incident.state, incident.severity)
