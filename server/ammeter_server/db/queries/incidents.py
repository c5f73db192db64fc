"""Queries of the lists of incidents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, select, tuple_

from ammeter_server.db.tables import incidents, runs


def newest(
    connection: Connection,
    limit: int,
    before: tuple[Any, ...] | None,
    run: str | None = None,
    states: Sequence[str] = (),
    severity: str | None = None,
    verdicts: Sequence[str] = (),
    project: str | None = None,
    ranks: Sequence[int] | None = None,
    since: int | None = None,
    until: int | None = None,
    owner: str | None = None,
) -> Sequence[Row[Any]]:
    """Returns incidents with the name and project of their run, newest first.

    before: (opened, id) of the previous page's last incident. since, until: limits of their opening, in ns.
    """
    query = _query().order_by(incidents.c.opened.desc(), incidents.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(tuple_(incidents.c.opened, incidents.c.id) < tuple_(*before))
    for column, value in (
        (incidents.c.run, run),
        (incidents.c.severity, severity),
        (runs.c.project, project),
        (runs.c.owner, owner),
    ):
        if value is not None:
            query = query.where(column == value)
    if states:
        query = query.where(incidents.c.state.in_(states))
    if verdicts:
        query = query.where(incidents.c.verdict.in_(verdicts))
    if ranks is not None:
        query = query.where(incidents.c.rank.in_(ranks))
    if since is not None:
        query = query.where(incidents.c.opened >= since)
    if until is not None:
        query = query.where(incidents.c.opened <= until)
    return connection.execute(query).all()


def one(connection: Connection, incident: str) -> Row[Any] | None:
    """Returns the incident. Its id begins with the id of its run."""
    run = incident.partition(".")[0]
    return connection.execute(_query().where(incidents.c.run == run, incidents.c.id == incident)).one_or_none()


def _query() -> Select[Any]:
    named = (runs.c.name.label("run_name"), runs.c.project, runs.c.owner)
    return select(incidents, *named).join(runs, incidents.c.run == runs.c.id)
