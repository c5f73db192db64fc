"""Removes bulk data by day.

PostgreSQL has a partition for each day and drops it; SQLite deletes rows in slices.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

from sqlalchemy import Connection, func, select, text
from sqlalchemy.exc import DBAPIError

from ammeter_server.db import citus
from ammeter_server.db.batched import until_done
from ammeter_server.db.engine import Store, lock_schema
from ammeter_server.db.queries import baselines
from ammeter_server.db.step_tables import DAY_NS, PARTITIONED_TABLES
from ammeter_server.db.tables import runs, streams

DAYS_AHEAD = 3
"""Days ahead for which partitions are created. Rows of any other day go to the partition `rest`."""

SET_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '50ms'"
"""Limit of the time that ingest waits while a partition is created or dropped. A later call tries again."""

RETRY_STATES = ("55P03", "40P01", "23514", "42P07")
"""Codes of failures to retry: another session has the lock, rows of the day arrived meanwhile, or another collector did
it."""

EPOCH = date(1970, 1, 1)


def prepare(store: Store, today: int) -> bool:
    """Creates the partitions of the next days.

    Returns whether all exist; SQLite needs none.
    """
    if store.is_sqlite:
        return True
    with store.reading() as connection:
        existing = {name for table in PARTITIONED_TABLES for name in _partitions(connection, table.name)}
    missing = [
        (table.name, day)
        for table in PARTITIONED_TABLES
        for day in range(today - 1, today + DAYS_AHEAD + 1)
        if _partition_name(table.name, day) not in existing
    ]
    created = [_create(store, table, day) for table, day in missing]
    return all(created)


def drop(store: Store, before: int) -> bool:
    """Deletes rows of days before `before`.

    Returns whether all are deleted; otherwise the caller tries again.
    """
    if store.is_sqlite:
        for table in PARTITIONED_TABLES:
            _delete_slices(store, table.name, before)
        return True
    with store.reading() as connection:
        expired = [
            name
            for table in PARTITIONED_TABLES
            for name in _partitions(connection, table.name)
            if name < _partition_name(table.name, before) and name != _default_partition(table.name)
        ]
    dropped = [_execute(store, f"DROP TABLE {name}") for name in expired]
    for table in PARTITIONED_TABLES:
        with store.writing() as connection:
            connection.execute(text(f"DELETE FROM {_default_partition(table.name)} WHERE day < {int(before)}"))
    return all(dropped)


def oldest(connection: Connection) -> int | None:
    """Returns the first day that has rows; None if there are none."""
    days = [connection.execute(select(func.min(table.c.day))).scalar() for table in PARTITIONED_TABLES]
    return min((day for day in days if day is not None), default=None)


def forget_runs(store: Store, before: int) -> int:
    """Deletes finished runs without contact since a day. Returns their number."""

    def delete_batch(connection: Connection, count: int) -> int:
        run_ids = old_runs(connection, before, count)
        for run in run_ids:
            connection.execute(runs.delete().where(runs.c.id == run))
            baselines.forget(connection, run)
        return len(run_ids)

    return until_done(store, delete_batch)


def old_runs(connection: Connection, before: int, limit: int) -> list[str]:
    """Returns finished runs that began before a day and had no contact since."""
    seen = select(streams.c.id).where(streams.c.run == runs.c.id, streams.c.last_seen >= before * DAY_NS).exists()
    over = select(runs.c.id).where(runs.c.state != "running", runs.c.started < before * DAY_NS, ~seen)
    return list(connection.execute(over.limit(limit)).scalars())


def used_bytes(connection: Connection) -> int:
    """Bytes of the database on disk: without SQLite's free pages, on all nodes with Citus."""
    if connection.dialect.name == "sqlite":
        pages, free, size = (_pragma(connection, name) for name in ("page_count", "freelist_count", "page_size"))
        return (pages - free) * size
    query = "SELECT pg_database_size(current_database())"
    if citus.is_installed(connection):
        query = f"SELECT sum(result::bigint) FROM run_command_on_all_nodes('{query}')"
    return int(connection.execute(text(query)).scalar_one())


def shrink(store: Store) -> None:
    """Returns SQLite's free pages to the file system if they exceed a sixteenth."""
    if not store.is_sqlite:
        return
    with store.reading() as connection:
        pages, free = _pragma(connection, "page_count"), _pragma(connection, "freelist_count")
    if free * 16 > pages:
        until_done(store, _vacuum)


def _vacuum(connection: Connection, pages: int) -> int:
    before = _pragma(connection, "freelist_count")
    driver: Any = connection.connection.driver_connection
    driver.executescript(f"PRAGMA incremental_vacuum({pages})")  # execute() would run only its first step, one page
    return before - _pragma(connection, "freelist_count")


def _pragma(connection: Connection, name: str) -> int:
    return int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())


def _partition_name(table: str, day: int) -> str:
    return f"{table}_{EPOCH + timedelta(days=day):%Y%m%d}"


def _default_partition(table: str) -> str:
    return f"{table}_rest"


def _partitions(connection: Connection, table: str) -> list[str]:
    query = text(
        "SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid WHERE inhparent = to_regclass(:table)"
    )
    return list(connection.execute(query, {"table": table}).scalars())


def _create(store: Store, table: str, day: int) -> bool:
    name = _partition_name(table, day)
    moved = f"WITH moved AS (DELETE FROM {_default_partition(table)} WHERE day = {day} RETURNING *)"
    return _execute(
        store,
        f"CREATE TABLE {name} (LIKE {table} INCLUDING ALL)",
        f"{moved} INSERT INTO {name} SELECT * FROM moved",
        f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({day}) TO ({day + 1})",
    )


def _execute(store: Store, *statements: str) -> bool:
    """Runs the statements in one transaction with a short lock timeout.

    Returns False if they are to be tried again: see RETRY_STATES.
    """
    try:
        with store.writing() as connection:
            connection.exec_driver_sql(SET_LOCK_TIMEOUT)
            lock_schema(connection)
            for statement in statements:
                connection.exec_driver_sql(statement)
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) not in RETRY_STATES:
            raise
        return False
    return True


def _delete_slices(store: Store, table: str, before: int) -> None:
    batch = f"SELECT rowid FROM {table} WHERE day < :before LIMIT :count"
    statement = text(f"DELETE FROM {table} WHERE rowid IN ({batch})")
    until_done(store, lambda c, count: c.execute(statement, {"before": before, "count": count}).rowcount)
