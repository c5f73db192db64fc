"""Queries on directives: what people ask of a live run, one row for each of its streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from ammeter_server.db.tables import directives, runs

MAX_LISTED = 200
MAX_PENDING = 10_000


def add(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    connection.execute(insert(directives), list(rows))


def of_run(connection: Connection, run: str) -> Sequence[Row[Any]]:
    """Returns the newest directives of a run, newest first, by rank."""
    query = select(directives).where(directives.c.run == run)
    return connection.execute(query.order_by(directives.c.created.desc(), directives.c.rank).limit(MAX_LISTED)).all()


def pending(connection: Connection, since: int) -> Sequence[Row[Any]]:
    """Returns the directives that are not delivered, with the external id of their run, oldest first.

    since: those of before, in ns, are out of date.
    """
    query = select(directives, runs.c.external_id).join(runs, runs.c.id == directives.c.run)
    query = query.where(directives.c.delivered.is_(None), directives.c.created >= since)
    return connection.execute(query.order_by(directives.c.created).limit(MAX_PENDING)).all()


def claim(connection: Connection, row: Row[Any], now: int) -> bool:
    """Marks a directive as delivered. Returns False if another process has."""
    same = (directives.c.run == row.run, directives.c.id == row.id, directives.c.stream == row.stream)
    marked = connection.execute(update(directives).where(*same, directives.c.delivered.is_(None)).values(delivered=now))
    return marked.rowcount == 1
