"""The way to the database: one Store, which hands out short transactions for reading and for writing."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, create_engine, event, make_url
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError

BUSY_MS = 10_000
"""How long a SQLite writer waits for the one before it. Batches take milliseconds, a slow disk seconds."""


class StoreFullError(RuntimeError):
    """The database could not take what had to be written: its disk is full."""


@dataclass(frozen=True)
class Store:
    """The database. Both transactions end when their block does; writing() commits, and rolls back on an error."""

    engine: Engine
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self.engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self, durable: bool = True) -> Iterator[Connection]:
        """A transaction that holds SQLite's write lock from its beginning, so it never fails half-way for it.

        durable: on disk when it ends. One that is not waits for no disk; a power cut may undo it, with all that came
        later and was not durable either. Raises StoreFullError when the disk has no room.
        """
        try:
            # SQLite's own waiting is a sleep of up to 100 ms; threads of this process queue here instead
            turn = self._turn if self.is_sqlite else nullcontext()
            with ExitStack() as held:
                held.enter_context(turn)
                connection = held.enter_context(self.engine.connect().execution_options(ammeter_write=True))
                if self.is_sqlite and not durable:
                    held.enter_context(_undurable(connection))
                held.enter_context(connection.begin())
                yield connection
        except DBAPIError as error:
            if _is_full(error):
                raise StoreFullError(
                    "the database's disk is full; free space: senders try again by themselves"
                ) from error
            raise

    def close(self) -> None:
        self.engine.dispose()


def connect(url: str) -> Store:
    """The Store behind a database URL (sqlite:////file or postgresql://...). Makes the folder of a SQLite file."""
    file = database_file(url)
    if file is None:
        whole = make_url(url).set(drivername="postgresql+psycopg")
        engine = create_engine(whole, pool_size=16, pool_pre_ping=True, hide_parameters=True)
        return Store(engine)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.touch(mode=0o600)  # SQLite's own files beside it get the same
    engine = create_engine(make_url(url), pool_size=16, hide_parameters=True)  # a run's config is not for the log
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return Store(engine)


def database_file(url: str) -> Path | None:
    """SQLite's file, None for PostgreSQL. Raises ValueError for a database that the collector cannot use."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ValueError("is no database URL") from error
    backend = parsed.get_backend_name()
    if backend == "postgresql":
        return None
    if backend != "sqlite":
        raise ValueError(f"names {backend!r}, which the collector does not know")
    if parsed.database in (None, "", ":memory:"):
        raise ValueError(f"is {url!r}, which forgets everything")
    return Path(str(parsed.database))


def insert(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT of the database at hand, which can say what to do about a row that is there already."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def insert_or_ignore(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    return insert(connection, table).on_conflict_do_nothing()


def upsert(connection: Connection, table: Table, row: Mapping[str, Any]) -> postgresql.Insert | sqlite.Insert:
    """An INSERT of the row, over the one with the same key if there is one."""
    key = [column.name for column in table.primary_key]
    rest = {name: value for name, value in row.items() if name not in key}
    return insert(connection, table).values(dict(row)).on_conflict_do_update(index_elements=key, set_=rest)


def _prepare_sqlite(connection: sqlite3.Connection, _: Any) -> None:
    connection.isolation_level = None
    if connection.execute("PRAGMA page_count").fetchone() == (0,):  # later it would change nothing
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    for pragma in (
        f"busy_timeout={BUSY_MS}",
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        "cache_size=-16384",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    write = connection.get_execution_options().get("ammeter_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


@contextmanager
def _undurable(connection: Connection) -> Iterator[None]:
    driver: Any = connection.connection.driver_connection
    driver.execute("PRAGMA synchronous=NORMAL")
    try:
        yield
    finally:
        driver.execute("PRAGMA synchronous=FULL")


def _is_full(error: DBAPIError) -> bool:
    original = error.orig
    if getattr(original, "sqlite_errorcode", None) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE):
        return True
    return getattr(original, "sqlstate", None) in ("53100", "53200")
