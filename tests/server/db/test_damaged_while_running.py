"""A database that is damaged or becomes read-only while a collector uses it."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from ammeter_server.__main__ import main
from ammeter_server.db import Store, StoreBrokenError, StoreRefusingError, connect, engine
from ammeter_server.db.errors import translate_db_errors
from tests.server.databases import postgresql_server
from tests.server.db.damage import made, overwrite
from tests.server.feeding import Stream, serving, train, wait_until


class Log(logging.Handler):
    """What the collector's log says from warnings on."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def log() -> Iterator[Log]:
    log = Log()
    logging.getLogger().addHandler(log)
    yield log
    logging.getLogger().removeHandler(log)


@pytest.mark.parametrize("damage", ["overwritten", "truncated"])
def test_damage_makes_a_running_collector_unready_refuses_frames_and_is_logged_once(
    damage: str, tmp_path: Path, log: Log
) -> None:
    with serving(tmp_path) as client:
        stream = Stream(client)
        train(stream, 0, 500)
        stream.send()
        assert 200 == client.get("/readyz").status_code
        for file in (tmp_path / "collector.db-wal", tmp_path / "collector.db"):
            if damage == "truncated":
                os.truncate(file, 0)
            else:
                overwrite(file, 0)

        def unready() -> bool:
            return client.get("/readyz").status_code == 503

        wait_until(unready, 20)
        answer = client.get("/readyz")
        assert "application/problem+json" == answer.headers["content-type"]
        assert "damaged" in answer.json()["detail"]
        for number in range(20):
            train(stream, 500 + number, 501 + number)
            with pytest.raises(AssertionError, match="damaged"):
                stream.send()
            stream.items.clear()
            assert client.get("/api/v1/runs").status_code in (200, 503)
            assert client.get("/metrics").status_code in (200, 503)
            assert client.get("/api/v1/audit").status_code in (200, 503)
        refused = client.post(
            f"/api/v1/runs/{stream.run}/streams/{stream.stream}/frames?offset={stream.offset}&end={stream.offset}",
            content=b"\x80",
            headers={"Content-Type": "application/vnd.ammeter.batch+msgpack"},
        )
        assert (503, "30") == (refused.status_code, refused.headers["retry-after"])
        assert "application/problem+json" == refused.headers["content-type"]
        assert 200 == client.get("/livez").status_code
        assert 200 == client.get("/").status_code
    assert 1 == sum("damaged" in line for line in log.lines), log.lines
    assert not [line for line in log.lines if "ASGI" in line or "failed" in line]


def test_a_collector_that_is_started_again_with_a_backup_goes_on(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        stream = Stream(client)
        train(stream, 0, 4)
        stream.send()
    shutil.copy(tmp_path / "collector.db", tmp_path / "backup.db")
    overwrite(tmp_path / "collector.db", 0)
    assert 2 == main(["token", "list", "--database-url", f"sqlite:///{tmp_path / 'collector.db'}"])
    shutil.copy(tmp_path / "backup.db", tmp_path / "collector.db")
    with serving(tmp_path) as client:
        stream.client = client
        train(stream, 5, 9)
        assert 200 == stream.send().status_code
        assert 200 == client.get("/readyz").status_code


def test_postgresql_that_stops_taking_writes_makes_it_unready_until_it_takes_them_again(log: Log) -> None:
    with postgresql_server() as url, serving(Path(), url) as client:
        stream = Stream(client)
        train(stream, 0, 5)
        stream.send()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            connection.execute("SELECT pg_reload_conf()")

            def refused() -> bool:
                train(stream, 5, 6)
                try:
                    stream.send()
                except AssertionError as error:
                    stream.items.clear()
                    return "is read-only" in str(error)
                return False

            wait_until(refused, 20)
            answer = client.get("/readyz")
            assert 503 == answer.status_code
            assert "allow writes" in answer.json()["detail"]
            connection.execute("SET default_transaction_read_only = off")
            connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
            connection.execute("SELECT pg_reload_conf()")
            wait_until(lambda: client.get("/readyz").status_code == 200, 20)
        train(stream, 6, 9)
        assert 200 == stream.send().status_code
    assert 1 == sum("is read-only" in line for line in log.lines), log.lines


def test_damage_is_logged_again_a_minute_later(log: Log) -> None:
    now = 1000.0
    trouble = engine.DatabaseFaults(clock=lambda: now)
    for seconds in (0.0, 1.0, 58.0, 2.0):
        now += seconds
        trouble.note(StoreBrokenError("the database is damaged"))
    assert 2 == len(log.lines)


def of_sqlite(code: int) -> sqlite3.Error:
    error = sqlite3.DatabaseError("said by SQLite")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (StoreBrokenError, of_sqlite(sqlite3.SQLITE_CORRUPT)),
        (StoreBrokenError, of_sqlite(sqlite3.SQLITE_CORRUPT_INDEX)),
        (StoreBrokenError, of_sqlite(sqlite3.SQLITE_NOTADB)),
        (StoreBrokenError, sqlite3.OperationalError("Could not decode to UTF-8 column 'name' with text '\\xff'")),
        (StoreRefusingError, of_sqlite(sqlite3.SQLITE_READONLY)),
        (StoreRefusingError, of_sqlite(sqlite3.SQLITE_READONLY_DBMOVED)),
        (StoreRefusingError, of_sqlite(sqlite3.SQLITE_CANTOPEN)),
        (StoreRefusingError, of_sqlite(sqlite3.SQLITE_PERM)),
    ],
)
def test_what_takes_a_person_is_told_apart(kind: type[Exception], error: sqlite3.Error) -> None:
    with pytest.raises(kind), translate_db_errors():
        raise error


def test_on_damage_nothing_more_is_written(tmp_path: Path) -> None:
    store = connect(f"sqlite:///{made(tmp_path / 'c.db')}")
    with pytest.raises(StoreBrokenError), store.writing():
        raise of_sqlite(sqlite3.SQLITE_CORRUPT)
    with pytest.raises(StoreBrokenError), store.writing():
        raise AssertionError("it was let in")
    _is_readable(store)
    store.close()


def _is_readable(store: Store) -> None:
    with store.reading() as connection:
        assert [] == connection.exec_driver_sql("SELECT * FROM tokens").all()
