"""Bulk data by day: PostgreSQL has a partition for each and drops it, SQLite deletes in slices."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

from sqlalchemy import Connection, func, select, text
from sqlalchemy.exc import DBAPIError

from ammeter_server.db.batched import until_done
from ammeter_server.db.engine import Store, alone
from ammeter_server.db.step_tables import DAY, PARTITIONED_TABLES
from ammeter_server.db.tables import runs, streams

AHEAD = 3
"""Days for which partitions are made before they come. A row of any other day goes to the partition `rest`."""

LOCK = "SET LOCAL lock_timeout = '50ms'"
"""How long frames that come in are held up at most where a partition is made or dropped; it is tried again later."""

LATER = ("55P03", "40P01", "23514", "42P07")
"""Why it could not be done now: somebody holds the lock, rows of the day came meanwhile, another collector did it."""

BEGIN = date(1970, 1, 1)


def prepare(store: Store, today: int) -> bool:
    """Makes the partitions of the next days. Returns whether all are there; SQLite needs none."""
    if store.is_sqlite:
        return True
    with store.reading() as connection:
        there = {name for table in PARTITIONED_TABLES for name in _partitions(connection, table.name)}
    missing = [
        (table.name, day)
        for table in PARTITIONED_TABLES
        for day in range(today - 1, today + AHEAD + 1)
        if _name(table.name, day) not in there
    ]
    made = [_make(store, table, day) for table, day in missing]
    return all(made)


def drop(store: Store, before: int) -> bool:
    """Takes away what came before a day. Returns whether that was all; else it is to be tried again."""
    if store.is_sqlite:
        for table in PARTITIONED_TABLES:
            _delete(store, table.name, "rowid", before)
        return True
    with store.reading() as connection:
        gone = [
            name
            for table in PARTITIONED_TABLES
            for name in _partitions(connection, table.name)
            if name < _name(table.name, before) and name != _rest(table.name)
        ]
    dropped = [_try(store, f"DROP TABLE {name}") for name in gone]
    for table in PARTITIONED_TABLES:
        _delete(store, _rest(table.name), "ctid", before)
    return all(dropped)


def oldest(connection: Connection) -> int | None:
    """The first day of which there is anything."""
    days = [connection.execute(select(func.min(table.c.day))).scalar() for table in PARTITIONED_TABLES]
    return min((day for day in days if day is not None), default=None)


def forget_runs(store: Store, before: int) -> int:
    """Takes away runs that are over and were last heard of before a day. Returns how many."""

    def some(connection: Connection, count: int) -> int:
        found = old_runs(connection, before, count)
        for run in found:
            connection.execute(runs.delete().where(runs.c.id == run))
        return len(found)

    return until_done(store, some)


def old_runs(connection: Connection, before: int, limit: int) -> list[str]:
    """Runs that are over and were last heard of before a day."""
    heard = select(streams.c.id).where(streams.c.run == runs.c.id, streams.c.heard >= before * DAY).exists()
    over = select(runs.c.id).where(runs.c.state != "running", runs.c.started < before * DAY, ~heard)
    return list(connection.execute(over.limit(limit)).scalars())


def used_bytes(connection: Connection) -> int:
    """What the database takes on disk, without what it could use again."""
    if connection.dialect.name == "sqlite":
        pages, free, size = (_pragma(connection, name) for name in ("page_count", "freelist_count", "page_size"))
        return (pages - free) * size
    return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())


def shrink(store: Store) -> None:
    """Gives SQLite's free pages back to the file system where they are more than a sixteenth."""
    if not store.is_sqlite:
        return
    with store.reading() as connection:
        pages, free = _pragma(connection, "page_count"), _pragma(connection, "freelist_count")
    if free * 16 > pages:
        until_done(store, _vacuum)


def _vacuum(connection: Connection, pages: int) -> int:
    before = _pragma(connection, "freelist_count")
    driver: Any = connection.connection.driver_connection
    driver.executescript(f"PRAGMA incremental_vacuum({pages})")  # execute() would take its first step, one page
    return before - _pragma(connection, "freelist_count")


def _pragma(connection: Connection, name: str) -> int:
    return int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())


def _name(table: str, day: int) -> str:
    return f"{table}_{BEGIN + timedelta(days=day):%Y%m%d}"


def _rest(table: str) -> str:
    return f"{table}_rest"


def _partitions(connection: Connection, table: str) -> list[str]:
    query = text(
        "SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid WHERE inhparent = to_regclass(:table)"
    )
    return list(connection.execute(query, {"table": table}).scalars())


def _make(store: Store, table: str, day: int) -> bool:
    name = _name(table, day)
    moved = f"WITH moved AS (DELETE FROM {_rest(table)} WHERE day = {day} RETURNING *)"
    return _try(
        store,
        f"CREATE TABLE {name} (LIKE {table} INCLUDING ALL)",
        f"{moved} INSERT INTO {name} SELECT * FROM moved",
        f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({day}) TO ({day + 1})",
    )


def _try(store: Store, *statements: str) -> bool:
    """Whether they could be done without holding up anybody."""
    try:
        with store.writing() as connection:
            connection.exec_driver_sql(LOCK)
            alone(connection)
            for statement in statements:
                connection.exec_driver_sql(statement)
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) not in LATER:
            raise
        return False
    return True


def _delete(store: Store, table: str, row: str, before: int) -> int:
    some = f"SELECT {row} FROM {table} WHERE day < :before LIMIT :count"
    statement = text(f"DELETE FROM {table} WHERE {row} IN ({some})")
    return until_done(store, lambda c, count: c.execute(statement, {"before": before, "count": count}).rowcount)
