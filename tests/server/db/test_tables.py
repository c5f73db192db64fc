from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import select, text

from ammeter_server.config.settings import Settings
from ammeter_server.db import Store, connect, migrations
from ammeter_server.db.json_safe import plain
from ammeter_server.db.tables import metadata, runs
from tests.server.databases import postgresql

LARGE = {
    "streams",
    "schemas",
    "compaction_leases",
    "chunks",
    "segments",
    "columns",
    "events",
    "findings",
    "incidents",
    "outbox",
    "directives",
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = connect(f"sqlite:///{tmp_path / 'a' / 'b.db'}")
    migrations.migrate(store)
    yield store
    store.close()


def test_the_migrations_make_what_the_tables_say(store: Store) -> None:
    with store.reading() as connection:
        assert [] == compare_metadata(MigrationContext.configure(connection), metadata)


def test_migrating_twice_is_fine(store: Store) -> None:
    migrations.migrate(store)
    assert migrations.newest() == migrations.current(store)


def test_an_empty_database_has_no_schema(tmp_path: Path) -> None:
    store = connect(f"sqlite:///{tmp_path / 'empty.db'}")
    assert migrations.current(store) is None
    store.close()


@pytest.mark.parametrize("name", sorted(LARGE))
def test_the_run_leads_the_key_of_every_large_table(name: str) -> None:
    assert "run" == next(iter(metadata.tables[name].primary_key)).name


def test_every_table_is_either_large_or_known_to_be_small() -> None:
    assert {"baselines", "runs", "totals", "projects", "tokens", "audit", "deleted_runs"} == set(
        metadata.tables
    ) - LARGE


def test_a_commit_is_on_disk_and_readers_do_not_wait(store: Store) -> None:
    with store.reading() as connection:
        pragmas = [connection.execute(text(f"PRAGMA {name}")).scalar() for name in ("journal_mode", "synchronous")]
    assert ["wal", 2] == pragmas


def test_only_what_need_not_be_on_disk_does_not_wait_for_it(store: Store) -> None:
    def synchronous() -> list[int]:
        """Of as many connections as may lie in the pool."""
        with store.reading() as one, store.reading() as other:
            return [int(connection.execute(text("PRAGMA synchronous")).scalar_one()) for connection in (one, other)]

    with store.writing(durable=False) as connection:
        assert 1 == connection.execute(text("PRAGMA synchronous")).scalar_one()
    assert [2, 2] == synchronous()
    with pytest.raises(ZeroDivisionError), store.writing(durable=False):
        raise ZeroDivisionError
    assert [2, 2] == synchronous()
    with store.writing() as connection:
        assert 2 == connection.execute(text("PRAGMA synchronous")).scalar_one()


def test_a_reader_sees_nothing_of_a_transaction_that_is_not_committed(store: Store) -> None:
    with store.writing() as writing:
        writing.execute(runs.insert().values(id="a"))
        with store.reading() as reading:
            assert [] == reading.execute(select(runs)).all()
    with store.reading() as reading:
        assert ["a"] == [row.id for row in reading.execute(select(runs))]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_connection_in_use_is_closed_when_it_is_returned(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Nothing leaks if the store is closed while a request is still being answered."""
    store = connect(f"sqlite:///{tmp_path / 'c.db'}" if kind == "sqlite" else request.getfixturevalue("postgresql_url"))
    with store.reading() as connection:
        driver: Any = connection.connection.driver_connection
        store.close()
        assert 1 == connection.execute(text("SELECT 1")).scalar_one()
    with pytest.raises((sqlite3.ProgrammingError, psycopg.OperationalError), match="closed"):
        driver.execute("SELECT 1")


def test_an_error_rolls_everything_back(store: Store) -> None:
    def fail() -> None:
        with store.writing() as connection:
            connection.execute(runs.insert().values(id="a"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with store.reading() as connection:
        assert [] == connection.execute(select(runs)).all()


def test_the_database_lies_in_a_folder_of_this_user_alone(tmp_path: Path) -> None:
    store = connect(f"sqlite:///{tmp_path / 'private' / 'b.db'}")
    store.close()
    assert 0o700 == (tmp_path / "private").stat().st_mode & 0o777


def test_the_database_in_a_folder_that_others_may_enter_is_read_by_this_user_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    store = connect(f"sqlite:///{tmp_path / 'b.db'}")
    migrations.migrate(store)
    files = [file for file in tmp_path.iterdir() if file.is_file()]
    assert {"b.db", "b.db-wal"} <= {file.name for file in files}
    assert {0o600} == {file.stat().st_mode & 0o777 for file in files}
    store.close()


def test_what_json_cannot_say_is_put_in_words() -> None:
    deep: list[object] = []
    for _ in range(100):
        deep = [deep]
    assert ["NaN", "Infinity", "-Infinity"] == plain([float("nan"), float("inf"), float("-inf")])
    assert {"1": ["\ufffd"]} == plain({1: ("\x00",)})
    assert "[" in str(plain(deep))


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with postgresql() as url:
        yield url


def test_postgresql_gets_the_same_tables(postgres: str) -> None:
    store = connect(Settings(database_url=postgres).database_url)
    migrations.migrate(store)
    with store.reading() as connection:
        opts = {"include_name": lambda name, kind, _: kind != "table" or name in metadata.tables}
        assert [] == compare_metadata(MigrationContext.configure(connection, opts=opts), metadata)
    store.close()
