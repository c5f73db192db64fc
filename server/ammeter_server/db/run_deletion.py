"""Deletes all data of one run and records its deletion."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Text, select, text, type_coerce

from ammeter_server.db.batched import until_done
from ammeter_server.db.engine import Store, insert_or_ignore
from ammeter_server.db.queries import audit as audit_records
from ammeter_server.db.queries import baselines
from ammeter_server.db.step_tables import PARTITIONED_TABLES
from ammeter_server.db.tables import audit, deleted_runs, incidents, outbox, runs, streams

CHECKPOINT_TIMEOUT_SECONDS = 10.0
"""Limit of the attempts to empty SQLite's write-ahead log, which readers can delay."""

RETRY_SECONDS = 0.05


def is_deleted(connection: Connection, run: str) -> bool:
    return connection.execute(select(deleted_runs.c.run).where(deleted_runs.c.run == run)).first() is not None


def of(connection: Connection, ids: Sequence[str]) -> dict[str, str]:
    """Returns id -> project of the given runs that were deleted.

    The project is empty if it is no longer known.
    """
    query = select(deleted_runs.c.run, deleted_runs.c.project).where(deleted_runs.c.run.in_(ids))
    return {row.run: row.project for row in connection.execute(query)}


def delete(store: Store, run: str, actor: str, now: int) -> bool:
    """Deletes a run and adds an audit record.

    The first transaction deletes the run's row and with it all rows that refer to it; from then on the run is invisible
    and accepts no frames. The second one removes comparisons with it from other runs. The rows of its steps follow in
    slices, so that batches of other runs are not delayed.

    Returns:
        False for an unknown run; nothing changes then. For a run that was deleted before, remaining data is deleted, as
        after an interruption or a concurrent compaction.
    """
    with store.writing() as connection:
        if not _delete_rows(connection, run, actor, now) and not is_deleted(connection, run):
            return False
    with store.writing() as connection:
        _delete_comparisons(connection, run)
    _delete_steps(store, run)
    return True


def _delete_steps(store: Store, run: str) -> None:
    for table in PARTITIONED_TABLES:
        if store.is_sqlite:
            until_done(store, _delete_slice(table.name, run))
        else:
            with store.writing() as connection:
                connection.execute(table.delete().where(table.c.run == run))
    _empty_log(store)


def compact(store: Store) -> None:
    """Rewrites SQLite's file without remnants of deleted rows.

    Earlier versions did not overwrite deleted data.
    """
    if store.is_sqlite:
        with store.exclusive() as driver:
            driver.execute("VACUUM")
        _empty_log(store)


def _delete_rows(connection: Connection, run: str, actor: str, now: int) -> bool:
    row = connection.execute(select(runs.c.project).where(runs.c.id == run).with_for_update()).first()
    if row is None:
        return False
    connection.execute(select(streams.c.id).where(streams.c.run == run).with_for_update()).all()
    connection.execute(insert_or_ignore(connection, deleted_runs).values(run=run, at=now, project=row.project))
    connection.execute(runs.delete().where(runs.c.id == run))  # deletes all rows that refer to it, by cascade
    baselines.forget(connection, run)
    of_it = audit.c.subject.startswith(f"{run}.", autoescape=True)
    connection.execute(audit.update().where(of_it).values(detail=""))
    audit_records.add(connection, now, actor, "run.deleted", run)
    return True


def _delete_comparisons(connection: Connection, run: str) -> None:
    """Removes a deleted run's settings and name from runs that were compared with it.

    A judgement in progress may have read the deleted run: it loses its claim and is repeated.
    """
    connection.execute(runs.update().where(runs.c.claimed_by.is_not(None)).values(claimed_by=None))
    mentions = type_coerce(runs.c.evaluation, Text).contains(run, autoescape=True)
    for other in connection.execute(select(runs.c.id, runs.c.evaluation).where(mentions)).all():
        compared = other.evaluation.get("baseline", {})
        if run in compared.get("runs", [compared.get("id")]):
            evaluation = {name: value for name, value in other.evaluation.items() if name != "baseline"}
            connection.execute(
                runs.update().where(runs.c.id == other.id).values(evaluation=evaluation, judged_version=-1)
            )
            _delete_incidents(connection, other.id, frozenset(compared.get("findings", {})))


def _delete_incidents(connection: Connection, run: str, verdicts: Collection[str]) -> None:
    """Removes a run's incidents of these verdicts, with their messages.

    Removes such findings from the consequences of other incidents, too.
    """
    for row in connection.execute(select(incidents).where(incidents.c.run == run)).all():
        this = incidents.c.run == run, incidents.c.id == row.id
        others: list[dict[str, Any]] = [
            consequence for consequence in row.consequences if consequence["verdict"] not in verdicts
        ]
        if row.verdict in verdicts:
            connection.execute(outbox.delete().where(outbox.c.run == run, outbox.c.incident == row.id))
            connection.execute(incidents.delete().where(*this))
        elif len(others) < len(row.consequences):
            connection.execute(incidents.update().where(*this).values(consequences=others))


def _delete_slice(table: str, run: str) -> Callable[[Connection, int], int]:
    statement = text(f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE run = :run LIMIT :count)")

    def delete_slice(connection: Connection, count: int) -> int:
        return int(connection.execute(statement, {"run": run, "count": count}).rowcount)

    return delete_slice


def _empty_log(store: Store) -> None:
    """Empties SQLite's write-ahead log, which contains copies of deleted pages.

    Retries for a limited time while readers prevent it.
    """
    if not store.is_sqlite:
        return
    deadline = time.monotonic() + CHECKPOINT_TIMEOUT_SECONDS
    while True:
        with store.exclusive() as driver:
            (busy, *_), *_ = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        if not busy or time.monotonic() > deadline:
            return
        time.sleep(RETRY_SECONDS)
