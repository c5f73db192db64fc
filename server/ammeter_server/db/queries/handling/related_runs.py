"""Queries of the runs that share something with a run: a verdict, a host, a commit or a driver.

Each reads one index; the number of rows is limited.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, or_, select

from ammeter_server.db.tables import incidents, runs, streams

MAX_COUNTED = 1_000
"""Runs of one kind that are counted."""

COLUMNS = (runs.c.id, runs.c.name, runs.c.project, runs.c.state, runs.c.started)


def of_column(connection: Connection, name: str, value: str, **scope: Any) -> Sequence[Row[Any]]:
    """Returns the runs with this value in a column of the table runs, newest first."""
    query: Select[Any] = select(*COLUMNS).where(runs.c[name] == value)
    return _read(connection, query, **scope)


def of_host(connection: Connection, host: str, **scope: Any) -> Sequence[Row[Any]]:
    """Returns the runs with a process on the host, newest first."""
    there = select(streams.c.run).where(streams.c.host == host)
    return _read(connection, select(*COLUMNS).where(runs.c.id.in_(there)), **scope)


def of_verdict(
    connection: Connection, verdict: str, run: str, since: int, project: str | None = None
) -> Sequence[Row[Any]]:
    """Returns the other runs in which the verdict has opened an incident since then, newest first."""
    found = select(incidents.c.run).where(incidents.c.verdict == verdict, incidents.c.opened >= since)
    query: Select[Any] = select(*COLUMNS).where(runs.c.id.in_(found), runs.c.id != run)
    return _limited(connection, query, project)


def open_incidents(connection: Connection, ids: Sequence[str]) -> set[str]:
    """Returns those of the runs that have an open incident."""
    query = select(incidents.c.run).where(incidents.c.run.in_(ids), incidents.c.state != "closed")
    return set(connection.execute(query).scalars())


def _read(
    connection: Connection, query: Select[Any], *, run: str, since: int, project: str | None = None
) -> Sequence[Row[Any]]:
    """Reads the runs, other than this one, that have been running at any moment since then."""
    later: ColumnElement[bool] = or_(runs.c.started >= since, runs.c.state == "running", runs.c.ended >= since)
    return _limited(connection, query.where(later, runs.c.id != run), project)


def _limited(connection: Connection, query: Select[Any], project: str | None) -> Sequence[Row[Any]]:
    if project is not None:
        query = query.where(runs.c.project == project)
    ordered = query.order_by(runs.c.started.desc(), runs.c.id.desc()).limit(MAX_COUNTED)
    return connection.execute(ordered).all()
