"""Takes everything of one run away, and remembers only that it was."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Text, select, text, type_coerce

from ammeter_server.db.batched import until_done
from ammeter_server.db.engine import Store, insert_or_ignore
from ammeter_server.db.queries import audit as deeds
from ammeter_server.db.step_tables import PARTITIONED_TABLES
from ammeter_server.db.tables import audit, deleted, incidents, outbox, runs, streams

CHECKPOINT_TIMEOUT_SECONDS = 10.0
"""Seconds in which SQLite's log is emptied, while others read."""

PAUSE = 0.05


def is_deleted(connection: Connection, run: str) -> bool:
    return connection.execute(select(deleted.c.run).where(deleted.c.run == run)).first() is not None


def of(connection: Connection, ids: Sequence[str]) -> dict[str, str]:
    """Id -> project of those of these runs that were deleted; without a project where that is not known any more."""
    query = select(deleted.c.run, deleted.c.project).where(deleted.c.run.in_(ids))
    return {row.run: row.project for row in connection.execute(query)}


def delete(store: Store, run: str, who: str, now: int) -> bool:
    """Deletes a run and notes who did it. False for one that is not there, of which nothing is changed; of one that was
    deleted before, what was left goes, as where that was interrupted or a keeper was just at it.

    From the first transaction on it is not there for anybody and takes no frames; what was concluded of others beside
    it goes in the second, and what has come with its steps in slices behind that, so that other runs go on.
    """
    with store.writing() as connection:
        if not _take_away(connection, run, who, now) and not is_deleted(connection, run):
            return False
    with store.writing() as connection:
        _forget_comparisons(connection, run)
    _delete_steps(store, run)
    return True


def _delete_steps(store: Store, run: str) -> None:
    for table in PARTITIONED_TABLES:
        if store.is_sqlite:
            until_done(store, _some(table.name, run))
        else:
            with store.writing() as connection:
                connection.execute(table.delete().where(table.c.run == run))
    _empty_log(store)


def compact(store: Store) -> None:
    """Writes SQLite's file anew, without what was left in it between its rows by versions that did not overwrite it."""
    if store.is_sqlite:
        with store.alone() as driver:
            driver.execute("VACUUM")
        _empty_log(store)


def _take_away(connection: Connection, run: str, who: str, now: int) -> bool:
    there = connection.execute(select(runs.c.project).where(runs.c.id == run).with_for_update()).first()
    if there is None:
        return False
    connection.execute(select(streams.c.id).where(streams.c.run == run).with_for_update()).all()
    connection.execute(insert_or_ignore(connection, deleted).values(run=run, at=now, project=there.project))
    connection.execute(runs.delete().where(runs.c.id == run))  # all that refers to it goes with it
    of_it = audit.c.subject.startswith(f"{run}.", autoescape=True)
    connection.execute(audit.update().where(of_it).values(detail=""))
    deeds.add(connection, now, who, "run.deleted", run)
    return True


def _forget_comparisons(connection: Connection, run: str) -> None:
    """Takes away what other runs hold of a deleted one that they were compared with: its settings and its name.

    Whoever judges a run at this moment may have read the deleted one: that judgement is void, and made again.
    """
    connection.execute(runs.update().where(runs.c.claimed_by.is_not(None)).values(claimed_by=None))
    said = type_coerce(runs.c.whole, Text).contains(run, autoescape=True)
    for other in connection.execute(select(runs.c.id, runs.c.whole).where(said)).all():
        compared = other.whole.get("baseline", {})
        if run in compared.get("runs", [compared.get("id")]):
            rest = {name: value for name, value in other.whole.items() if name != "baseline"}
            connection.execute(runs.update().where(runs.c.id == other.id).values(whole=rest, judged_version=-1))
            _forget_verdicts(connection, other.id, frozenset(compared.get("findings", {})))


def _forget_verdicts(connection: Connection, run: str, verdicts: Collection[str]) -> None:
    """Takes away a run's incidents of these verdicts with their messages, also where they came of another one."""
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


def _some(table: str, run: str) -> Callable[[Connection, int], int]:
    statement = text(f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE run = :run LIMIT :count)")

    def some(connection: Connection, count: int) -> int:
        return int(connection.execute(statement, {"run": run, "count": count}).rowcount)

    return some


def _empty_log(store: Store) -> None:
    """SQLite's log holds pages as they were until it is emptied, which waits for those who read."""
    if not store.is_sqlite:
        return
    deadline = time.monotonic() + CHECKPOINT_TIMEOUT_SECONDS
    while True:
        with store.alone() as driver:
            (busy, *_), *_ = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        if not busy or time.monotonic() > deadline:
            return
        time.sleep(PAUSE)
