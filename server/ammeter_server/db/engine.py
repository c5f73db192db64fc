"""The way to the database: one Store, which hands out short transactions for reading and for writing."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, Table, create_engine, event, func, make_url, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import QueuePool

from ammeter_server.db.errors import StoreAwayError, StoreBrokenError, StoreRefusingError, translate_db_errors

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())  # a command that is no server says it once, as its answer

SHAPE = 7_238_401
"""The advisory lock of whoever changes the shape; any number that others do not use."""

BUSY_MS = 10_000
"""How long a SQLite writer waits for the one before it. Batches take milliseconds, a slow disk seconds."""

CACHE = 16_384
"""KiB of pages that SQLite's one writer keeps. Nobody else writes, so they stay right; a reader's are thrown away with
every commit, and what it reads again is in the system's cache: it has SQLite's own 2 MiB."""

POSTGRESQL_TIMEOUTS = {
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
}
"""How PostgreSQL's driver waits for a host that is silent, where the URL says nothing of it: 5 s for a connection, 10 s
(in ms) for what was sent to arrive, and 10 s without a word until it looks whether anybody is there."""

MAX_OVERFLOW = 10
"""Connections beyond those that are kept open, for a moment in which more are needed."""

ENCODING = {"client_encoding": "utf8"}
"""Else a database made under the locale C, whose encoding is SQL_ASCII, answers with bytes in place of text."""

POOL_SECONDS = 10.0
"""How long whoever needs a connection waits for one that others have."""

LOG_SECONDS = 60.0
"""Between two lines of the log about a database that is damaged or takes no writes: each transaction meets it."""


@dataclass
class Trouble:
    """What takes a person to mend, as transactions of this process have met it.

    broken: the damage; it stays until the process is started again, and nothing more is written, as what is written on
    top of damage and acknowledged would be lost with it. refusing: until somebody has looked whether it still does.
    """

    broken: str = ""
    refusing: str = ""
    clock: Callable[[], float] = time.monotonic
    _logged: float = float("-inf")

    def note(self, error: StoreAwayError) -> None:
        if isinstance(error, StoreBrokenError):
            self.broken = self.broken or str(error)
        elif isinstance(error, StoreRefusingError):
            self.refusing = str(error)
        else:
            return
        if self.clock() - self._logged >= LOG_SECONDS:
            self._logged = self.clock()
            log.error("%s", error)


class Connections(NamedTuple):
    """used: by whoever reads or writes now. limit: of both together, beyond which one waits."""

    used: int
    idle: int
    limit: int


@dataclass(frozen=True)
class Store:
    """The database. Both transactions end when their block does; writing() commits, and rolls back on an error.

    Both raise StoreFullError where the disk has no room, and StoreAwayError where the database does not answer,
    refuses, or is damaged.
    """

    engine: Engine
    writer: Engine
    """The same, but for SQLite: one connection."""
    trouble: Trouble = field(default_factory=Trouble)
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        try:
            with translate_db_errors(), self.engine.connect() as connection:
                yield connection
        except StoreAwayError as error:
            self.trouble.note(error)
            raise

    @contextmanager
    def writing(self, durable: bool = True) -> Iterator[Connection]:
        """A transaction that holds SQLite's write lock from its beginning, so it never fails half-way for it.

        durable: on disk when it ends. One that is not waits for no disk; a power cut may undo it, with all that came
        later and was not durable either.
        """
        if self.trouble.broken:
            raise StoreBrokenError(self.trouble.broken)
        # SQLite's own waiting is a sleep of up to 100 ms; threads of this process queue here instead
        turn = self._turn if self.is_sqlite else nullcontext()
        try:
            with translate_db_errors(), ExitStack() as held:
                held.enter_context(turn)
                connection = held.enter_context(self.writer.connect())
                if self.is_sqlite and not durable:
                    held.enter_context(_undurable(connection))
                held.enter_context(connection.begin())
                yield connection
        except StoreAwayError as error:
            self.trouble.note(error)
            raise

    def connections(self) -> Connections:
        """How many there are at this moment."""
        pools = [engine.pool for engine in {id(engine): engine for engine in (self.engine, self.writer)}.values()]
        several = [pool for pool in pools if isinstance(pool, QueuePool)]
        limit = sum(pool.size() + MAX_OVERFLOW for pool in several)
        return Connections(sum(p.checkedout() for p in several), sum(p.checkedin() for p in several), limit)

    @contextmanager
    def alone(self) -> Iterator[Any]:
        """SQLite's own connection that writes, outside of a transaction and with nobody else on it, for what no
        transaction may do."""
        with translate_db_errors(), self._turn, self.writer.connect() as connection:
            yield connection.connection.driver_connection

    def close(self) -> None:
        self.writer.dispose()
        self.engine.dispose()


def connect(url: str) -> Store:
    """The Store behind a database URL (sqlite:////file or postgresql://...). Makes the folder of a SQLite file.

    Raises StoreRefusingError where the file cannot be made.
    """
    file = database_file(url)
    if file is None:
        engine = _postgresql(url)
        return Store(engine, engine)
    try:
        if not file.exists():
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.touch(mode=0o600)  # SQLite's own files beside it get the same
    except (OSError, ValueError) as error:  # a NUL in the name is the latter
        reason = getattr(error, "strerror", None) or str(error)
        said = f"the database {str(file)!r} cannot be made ({reason}); name a file in a folder that this user may write"
        raise StoreRefusingError(said, reason) from error
    return Store(
        _sqlite(url, 16, "BEGIN"), _sqlite(url, 1, "BEGIN IMMEDIATE", f"cache_size=-{CACHE}", "secure_delete=ON")
    )


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


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    return make_url(url).render_as_string(hide_password=True)


def insert(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT of the database at hand, which can say what to do about a row that is there already."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def insert_or_ignore(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    return insert(connection, table).on_conflict_do_nothing()


def alone(connection: Connection) -> None:
    """Waits until nobody else changes the database's shape, and keeps them waiting until the transaction ends."""
    if connection.dialect.name == "postgresql":  # SQLite has one writer at a time anyway
        connection.execute(select(func.pg_advisory_xact_lock(SHAPE)))


def _postgresql(url: str) -> Engine:
    whole = make_url(url).set(drivername="postgresql+psycopg")
    given = {name: value for name, value in (POSTGRESQL_TIMEOUTS | ENCODING).items() if name not in whole.query}
    engine = create_engine(
        whole,
        pool_size=16,
        max_overflow=MAX_OVERFLOW,
        pool_timeout=POOL_SECONDS,
        pool_pre_ping=True,
        hide_parameters=True,
        connect_args=given,
    )
    event.listen(engine, "connect", _prepare_postgresql)
    return engine


def _prepare_postgresql(connection: Any, _: Any) -> None:
    """Makes commits wait for the disk where the server is set not to: what is acknowledged may be deleted elsewhere."""
    weak = "current_setting('synchronous_commit') = 'off'"
    connection.execute(f"SELECT set_config('synchronous_commit', 'on', false) WHERE {weak}")
    connection.commit()


def _sqlite(url: str, connections: int, begin: str, *pragmas: str) -> Engine:
    engine = create_engine(
        make_url(url), pool_size=connections, max_overflow=MAX_OVERFLOW, hide_parameters=True
    )  # what runs say is not for the log
    ours = (f"busy_timeout={BUSY_MS}", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", *pragmas)

    def prepare(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None
        if connection.execute("PRAGMA page_count").fetchone() == (0,):  # later it would change nothing
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        for pragma in ours:
            connection.execute(f"PRAGMA {pragma}")

    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine


@contextmanager
def _undurable(connection: Connection) -> Iterator[None]:
    driver: Any = connection.connection.driver_connection
    driver.execute("PRAGMA synchronous=NORMAL")
    try:
        yield
    finally:
        driver.execute("PRAGMA synchronous=FULL")
