"""Database access: a Store provides short transactions for reading and for writing."""

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
log.addHandler(logging.NullHandler())  # a command that is no server prints the error once, as its result

SCHEMA_LOCK_ID = 7_238_401
"""Advisory lock of a schema change; any number that no other lock uses."""

BUSY_TIMEOUT_MS = 10_000
"""Wait of a SQLite writer for the one before it. Batches take milliseconds; a slow disk makes that seconds."""

CACHE_KIB = 16_384
"""KiB of the page cache of SQLite's single writer. No other connection writes, so its pages stay valid. A reader's
cache is dropped with every commit and its pages come again from the system's cache, so readers keep SQLite's 2 MiB."""

POSTGRESQL_TIMEOUTS = {
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
}
"""Timeouts of PostgreSQL's driver for an unresponsive host, unless the URL sets them: 5 s to connect, 10 s (in ms)
until sent data is acknowledged, and 10 s of idle time before the first keepalive probe."""

MAX_OVERFLOW = 10
"""Connections beyond the pool's size, for short peaks."""

CLIENT_ENCODING = {"client_encoding": "utf8"}
"""Without it, a database created under locale C has the encoding SQL_ASCII and returns bytes in place of text."""

POOL_TIMEOUT_SECONDS = 10.0
"""Wait for a free connection while all are in use."""

LOG_INTERVAL_SECONDS = 60.0
"""Between two log lines about a database that is damaged or refuses writes: every transaction meets the error."""


@dataclass
class DatabaseFaults:
    """Errors met by transactions of this process that an operator has to repair.

    Attributes:
        broken: The damage. It stays until the process restarts, and all writes are refused: data written onto damage
            and acknowledged would be lost with it.
        refusing: The refusal, until a readiness check finds that it is over.
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
        if self.clock() - self._logged >= LOG_INTERVAL_SECONDS:
            self._logged = self.clock()
            log.error("%s", error)


class Connections(NamedTuple):
    """Numbers of database connections.

    Attributes:
        used: In use by readers and writers.
        idle: Open and free.
        limit: Upper limit of both together; a further request waits.
    """

    used: int
    idle: int
    limit: int


@dataclass(frozen=True)
class Store:
    """The database. Transactions end with their block.

    writing() commits, and rolls back on an error. Both kinds raise StoreFullError if the disk is full, and
    StoreAwayError if the database does not answer, refuses access or is damaged.
    """

    engine: Engine
    writer: Engine
    """The same as `engine`; for SQLite an engine with one connection."""
    faults: DatabaseFaults = field(default_factory=DatabaseFaults)
    _write_lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        try:
            with translate_db_errors(), self.engine.connect() as connection:
                yield connection
        except StoreAwayError as error:
            self.faults.note(error)
            raise

    @contextmanager
    def writing(self, durable: bool = True) -> Iterator[Connection]:
        """Opens a write transaction. SQLite's write lock is taken at its beginning.

        The transaction therefore never fails half-way for lack of the lock.

        Args:
            durable: Whether the commit waits for the disk. A power cut may undo a commit that does not, together with
                all later non-durable commits.
        """
        if self.faults.broken:
            raise StoreBrokenError(self.faults.broken)
        # SQLite waits for its lock in sleeps of up to 100 ms; threads of this process queue here instead
        write_lock = self._write_lock if self.is_sqlite else nullcontext()
        try:
            with translate_db_errors(), ExitStack() as stack:
                stack.enter_context(write_lock)
                connection = stack.enter_context(self.writer.connect())
                if self.is_sqlite and not durable:
                    stack.enter_context(_undurable(connection))
                stack.enter_context(connection.begin())
                yield connection
        except StoreAwayError as error:
            self.faults.note(error)
            raise

    def connections(self) -> Connections:
        """Returns the current numbers of connections."""
        pools = [engine.pool for engine in {id(engine): engine for engine in (self.engine, self.writer)}.values()]
        queue_pools = [pool for pool in pools if isinstance(pool, QueuePool)]
        limit = sum(pool.size() + MAX_OVERFLOW for pool in queue_pools)
        return Connections(sum(p.checkedout() for p in queue_pools), sum(p.checkedin() for p in queue_pools), limit)

    @contextmanager
    def exclusive(self) -> Iterator[Any]:
        """Yields SQLite's write connection, outside of a transaction and exclusively.

        For statements that SQLite does not allow in a transaction.
        """
        with translate_db_errors(), self._write_lock, self.writer.connect() as connection:
            yield connection.connection.driver_connection

    def close(self) -> None:
        """Closes all connections, those in use when they are returned."""
        for engine in (self.writer, self.engine):
            event.listen(engine, "checkin", lambda _, entry: entry.close())
            engine.dispose()


def connect(url: str) -> Store:
    """Returns the Store for a database URL (sqlite:////file or postgresql://...).

    Creates the folder of a SQLite file. Raises StoreRefusingError if the file cannot be created.
    """
    file = database_file(url)
    if file is None:
        engine = _postgresql(url)
        return Store(engine, engine)
    try:
        if not file.exists():
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.touch(mode=0o600)  # SQLite's own files beside it get the same
    except (OSError, ValueError) as error:  # ValueError: the name contains a NUL
        reason = getattr(error, "strerror", None) or str(error)
        message = (
            f"the database {str(file)!r} cannot be created ({reason}); name a file in a folder that this user may write"
        )
        raise StoreRefusingError(message, reason) from error
    return Store(
        _sqlite(url, 16, "BEGIN"), _sqlite(url, 1, "BEGIN IMMEDIATE", f"cache_size=-{CACHE_KIB}", "secure_delete=ON")
    )


def database_file(url: str) -> Path | None:
    """Returns SQLite's file, None for PostgreSQL.

    Raises ValueError for a database that the collector cannot use.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ValueError("is not a database URL") from error
    backend = parsed.get_backend_name()
    if backend == "postgresql":
        return None
    if backend != "sqlite":
        raise ValueError(f"names {backend!r}; use sqlite or postgresql")
    if parsed.database in (None, "", ":memory:"):
        raise ValueError(f"is {url!r}, a database in memory; name a file, as in sqlite:////var/lib/ammeter/ammeter.db")
    return Path(str(parsed.database))


def without_password(url: str) -> str:
    """Returns the URL with its password hidden."""
    return make_url(url).render_as_string(hide_password=True)


def insert(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """Returns an INSERT of the connection's dialect, which supports ON CONFLICT."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def insert_or_ignore(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    return insert(connection, table).on_conflict_do_nothing()


def lock_schema(connection: Connection) -> None:
    """Takes the lock of schema changes, until the transaction ends.

    Waits while another process changes the schema.
    """
    if connection.dialect.name == "postgresql":  # SQLite has one writer at a time anyway
        connection.execute(select(func.pg_advisory_xact_lock(SCHEMA_LOCK_ID)))


def _postgresql(url: str) -> Engine:
    parsed_url = make_url(url).set(drivername="postgresql+psycopg")
    connect_args = {
        name: value for name, value in (POSTGRESQL_TIMEOUTS | CLIENT_ENCODING).items() if name not in parsed_url.query
    }
    engine = create_engine(
        parsed_url,
        pool_size=16,
        max_overflow=MAX_OVERFLOW,
        pool_use_lifo=True,
        pool_timeout=POOL_TIMEOUT_SECONDS,
        pool_pre_ping=True,
        hide_parameters=True,
        connect_args=connect_args,
    )
    event.listen(engine, "connect", _prepare_postgresql)
    return engine


def _prepare_postgresql(connection: Any, _: Any) -> None:
    """Turns on synchronous_commit where the server has it off.

    An agent may delete acknowledged data, so commits have to wait for the disk.
    """
    weak = "current_setting('synchronous_commit') = 'off'"
    connection.execute(f"SELECT set_config('synchronous_commit', 'on', false) WHERE {weak}")
    connection.commit()


def _sqlite(url: str, connections: int, begin: str, *pragmas: str) -> Engine:
    engine = create_engine(
        make_url(url),
        pool_size=connections,
        max_overflow=MAX_OVERFLOW,
        pool_use_lifo=True,  # the connection that was used last has its statements and pages at hand
        hide_parameters=True,  # data of runs must not reach the log
    )
    settings = (f"busy_timeout={BUSY_TIMEOUT_MS}", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", *pragmas)

    def prepare(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None
        if connection.execute("PRAGMA page_count").fetchone() == (0,):  # the pragma has no effect once there are pages
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        for pragma in settings:
            connection.execute(f"PRAGMA {pragma}")

    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", _begin_reading if begin == "BEGIN" else lambda c: c.exec_driver_sql(begin))
    return engine


def _begin_reading(connection: Connection) -> None:
    """Begins a transaction of SQLite without a lock. It cannot fail, and needs none of SQLAlchemy's care."""
    driver: Any = connection.connection.driver_connection
    driver.execute("BEGIN")


@contextmanager
def _undurable(connection: Connection) -> Iterator[None]:
    driver: Any = connection.connection.driver_connection
    driver.execute("PRAGMA synchronous=NORMAL")
    try:
        yield
    finally:
        driver.execute("PRAGMA synchronous=FULL")
