"""A database that is away: everybody is told so, soon, and what was left half done is taken up again."""

from __future__ import annotations

import sqlite3
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as NoneFreeError

from ammeter.wire import codec, frames
from ammeter_server.config.settings import Settings
from ammeter_server.db import Row, Store, StoreAwayError, StoreFullError, connect, migrations
from ammeter_server.db.errors import translate_db_errors
from ammeter_server.db.queries import judge as judgements
from ammeter_server.db.tables import runs, streams
from ammeter_server.ingest import writer_queue
from ammeter_server.judging import cross_rank
from ammeter_server.judging.judge import Judge
from tests.server.callers import guarded
from tests.server.databases import postgresql_server
from tests.server.feeding import Stream, serving, train

NOW = 10**18


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with postgresql_server() as url:
        yield url


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = connect(f"sqlite:///{tmp_path / 'c.db'}")
    migrations.migrate(store)
    yield store
    store.close()


def of_sqlite(code: int) -> DBAPIError:
    said = sqlite3.OperationalError("said by SQLite")
    said.sqlite_errorcode = code
    return OperationalError("SELECT 1", None, said)


def of_postgresql(kind: type[psycopg.Error]) -> DBAPIError:
    return DBAPIError("SELECT 1", None, kind("said by PostgreSQL"))


FULL = [
    of_sqlite(sqlite3.SQLITE_FULL),
    of_sqlite(sqlite3.SQLITE_IOERR_WRITE),
    of_sqlite(sqlite3.SQLITE_IOERR_SHMSIZE),
    of_sqlite(sqlite3.SQLITE_FULL).orig,
    of_postgresql(psycopg.errors.DiskFull),
]
AWAY = [
    of_sqlite(sqlite3.SQLITE_BUSY),
    of_sqlite(sqlite3.SQLITE_IOERR_FSYNC),
    of_sqlite(sqlite3.SQLITE_CANTOPEN),
    of_postgresql(psycopg.errors.AdminShutdown),
    of_postgresql(psycopg.errors.CrashShutdown),
    of_postgresql(psycopg.errors.CannotConnectNow),
    of_postgresql(psycopg.errors.TooManyConnections),
    of_postgresql(psycopg.errors.ReadOnlySqlTransaction),
    of_postgresql(psycopg.errors.ConnectionFailure),
    OperationalError("SELECT 1", None, psycopg.OperationalError("server closed the connection unexpectedly")),
]
NEITHER = [
    of_sqlite(sqlite3.SQLITE_ERROR),
    IntegrityError("INSERT", None, sqlite3.IntegrityError("twice")),
    of_postgresql(psycopg.errors.LockNotAvailable),
    of_postgresql(psycopg.errors.DeadlockDetected),
    of_postgresql(psycopg.errors.UndefinedTable),
]


@pytest.mark.parametrize("error", FULL)
def test_a_full_disk_is_told_apart(error: Exception) -> None:
    with pytest.raises(StoreFullError, match="free space"), translate_db_errors():
        raise error


@pytest.mark.parametrize("error", [*AWAY, NoneFreeError()])
def test_a_database_that_is_away_is_told_apart(error: Exception) -> None:
    with pytest.raises(StoreAwayError), translate_db_errors():
        raise error


@pytest.mark.parametrize("error", NEITHER)
def test_what_asking_again_does_not_mend_stays_what_it_is(error: DBAPIError) -> None:
    with pytest.raises(type(error)), translate_db_errors():
        raise error


def test_nobody_waits_for_a_batch_longer_than_is_said_and_what_was_not_begun_is_not_done(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with guarded(tmp_path, postgres) as place:
        stream = Stream(place.client)
        train(stream, 0, 5)
        stream.send()
        with place.store.writing() as holding, monkeypatch.context() as patch:
            patch.setattr(writer_queue, "COMMIT_TIMEOUT_SECONDS", 0.5)
            holding.execute(text("SELECT 1 FROM streams FOR UPDATE"))  # its row, as a server that hangs would
            train(stream, 6, 7)
            stream.pack()
            refused = []
            sending = [threading.Thread(target=lambda: refused.append(post(stream))) for _ in range(6)]
            for thread in sending:
                thread.start()
            for thread in sending:
                thread.join()
        assert [(503, "2")] * 6 == [(response.status_code, response.headers["retry-after"]) for response in refused]
        assert "the database has not answered for" in refused[0].json()["detail"]
        stream.send()
        with place.store.reading() as connection:
            (row,) = connection.execute(streams.select().where(streams.c.id == stream.stream)).all()
        assert (8, stream.offset) == (row.rows, row.acknowledged)


def post(stream: Stream) -> httpx.Response:
    """What the collector says to what the stream would send."""
    body = codec.encode_batch(frames.Batch(items=list(stream.items)))
    place = f"/api/v1/runs/{stream.run}/streams/{stream.stream}/frames"
    span = f"?offset={stream.offset}&end={stream.offset + 100 * len(stream.items)}"
    return stream.client.post(place + span, content=body, headers={"Content-Type": frames.CONTENT_TYPE})


def test_commits_wait_for_the_disk_whatever_postgresql_is_set_to(postgres: str) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("ALTER ROLE ammeter SET synchronous_commit = off")
    store = connect(postgres)
    try:
        with store.writing() as writing:
            assert "on" == writing.execute(text("SHOW synchronous_commit")).scalar_one()
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute("ALTER ROLE ammeter SET synchronous_commit = remote_write")
        store.engine.dispose()
        with store.writing() as writing:
            assert "remote_write" == writing.execute(text("SHOW synchronous_commit")).scalar_one()
    finally:
        store.close()


def add_run(store: Store) -> str:
    run = str(uuid.uuid4())
    with store.writing() as connection:
        connection.execute(runs.insert().values(id=run, name="night", started=1))
        connection.execute(streams.insert().values(run=run, id=uuid.uuid4().hex, last_seen=NOW, version=1))
    return run


@pytest.mark.parametrize("error", [StoreAwayError, StoreFullError])
def test_a_judge_takes_up_a_run_that_the_database_kept_it_from_giving_back(
    error: type[Exception], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error("as it is")

    run, judge = add_run(store), Judge(store, Settings(), [])
    monkeypatch.setattr(judgements, "release", fail)
    with pytest.raises(error):
        judge.judge_due(NOW)
    monkeypatch.undo()
    assert not Judge(store, Settings(), []).judge(run, NOW + 1)
    assert [None] != [row.claimed_by for row in rows(store)]
    judge.judge_due(NOW + 1)
    assert [(None, 1, NOW + 1)] == [(row.claimed_by, row.judged_version, row.judged_at) for row in rows(store)]


def test_a_run_is_not_judged_without_its_ranks_because_the_database_was_away(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StoreAwayError("as it is")

    add_run(store)
    monkeypatch.setattr(cross_rank, "evaluate_run", fail)
    with pytest.raises(StoreAwayError):
        Judge(store, Settings(), []).judge_due(NOW)
    assert [0] == [row.judged_version for row in rows(store)]


def rows(store: Store) -> list[Row[Any]]:
    with store.reading() as connection:
        return list(connection.execute(runs.select()))


def test_a_postgresql_that_was_made_under_the_locale_c_keeps_text(postgres: str, tmp_path: Path) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE DATABASE plain ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    url = postgres.replace("/postgres?", "/plain?")
    with serving(tmp_path, url) as client:
        stream = Stream(client, name="Überlauf \N{FIRE}")
        train(stream, 0, 3)
        stream.send()
        assert "Überlauf \N{FIRE}" == client.get(f"/api/v1/runs/{stream.run}").json()["name"]
