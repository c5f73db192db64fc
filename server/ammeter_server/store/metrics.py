"""Queries behind /metrics: runs that live or ended lately, their incidents, and the fleet's totals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, or_, select, text

from ammeter_server.store.runs import TOLD
from ammeter_server.tables import incidents, runs, streams, totals

Rows = Sequence[Row[Any]]


def runs_since(connection: Connection, ended_after: int) -> Rows:
    """Runs that go on, and those that ended after this moment."""
    query: Select[Any] = select(runs.c.id, runs.c.project, runs.c.state, runs.c.environment, runs.c.world_size)
    query = query.add_columns(runs.c.started, runs.c.ended, runs.c.whole)
    lively = or_(runs.c.state == "running", runs.c.ended > ended_after)
    return connection.execute(query.where(lively).order_by(runs.c.started, runs.c.id)).all()


def streams_since(connection: Connection, ended_after: int) -> Rows:
    """The streams of those runs, oldest first."""
    query: Select[Any] = select(*TOLD, streams.c.backlog).join(runs, streams.c.run == runs.c.id)
    lively = or_(runs.c.state == "running", runs.c.ended > ended_after)
    return connection.execute(query.where(lively).order_by(streams.c.started)).all()


def incidents_since(connection: Connection, closed_after: int) -> Rows:
    """Incidents that are not closed, and those closed after this moment."""
    columns = (incidents.c.run, runs.c.project, incidents.c.verdict, incidents.c.severity, incidents.c.state)
    query: Select[Any] = select(*columns).join(runs, incidents.c.run == runs.c.id)
    recent = or_(incidents.c.state != "closed", incidents.c.closed > closed_after)
    return connection.execute(query.where(recent).order_by(incidents.c.opened)).all()


def fleet(connection: Connection) -> Rows:
    return connection.execute(select(totals)).all()


def storage_bytes(connection: Connection) -> int:
    """What the database takes on disk."""
    if connection.dialect.name == "sqlite":
        pages = connection.execute(text("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"))
        return int(pages.scalar_one())
    return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())
