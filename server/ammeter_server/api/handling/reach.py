"""GET /api/v1/incidents/{incident}/reach: other runs that the same cause may affect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import APIRouter

from ammeter_server.api.handling.context import require
from ammeter_server.auth.project_access import Project
from ammeter_server.context import ContextDep
from ammeter_server.db import Connection, Row
from ammeter_server.db.json_safe import instant
from ammeter_server.db.queries import runs
from ammeter_server.db.queries.handling import related_runs as query

router = APIRouter(prefix="/api/v1/incidents/{incident}", tags=["incidents"])

MAX_LISTED = 20
"""Runs of one kind in a response."""

Kind = Literal["verdict", "host", "commit", "driver"]


@dataclass(frozen=True)
class RelatedRun:
    """A run. open_incidents: whether it has any."""

    run: str
    name: str
    project: str
    state: str
    started: str | None
    open_incidents: bool


@dataclass(frozen=True)
class Related:
    """Other runs with the same value.

    Attributes:
        by: `verdict`: the same verdict has opened an incident in them since then. `host`, `commit`, `driver`: they
            have run at some moment since then.
        runs: Their number, at most 1000.
        broken: How many of them have an open incident.
        items: The newest.
    """

    by: Kind
    value: str
    runs: int
    broken: int
    items: list[RelatedRun]


@dataclass(frozen=True)
class Reach:
    """since: when the incident opened. items: without what is unknown of the run."""

    since: str | None
    items: list[Related]


@router.get("/reach", summary="Other runs that the cause of an incident may affect")
def read_reach(context: ContextDep, project: Project, incident: str) -> Reach:
    """Lists other runs since the incident opened with its verdict, or on the host, commit or driver of its run."""
    with context.store.reading() as connection:
        row = require(connection, incident)
        return Reach(instant(row.opened), list(_related(connection, row, project)))


def _related(connection: Connection, incident: Row[Any], project: str | None) -> Iterator[Related]:
    run = runs.one(connection, incident.run)
    scope = {"run": incident.run, "since": incident.opened, "project": project}
    yield _counted(connection, "verdict", incident.verdict, query.of_verdict(connection, incident.verdict, **scope))
    host = _host(runs.streams_of(connection, [incident.run]), incident.stream)
    if host:
        yield _counted(connection, "host", host, query.of_host(connection, host, **scope))
    kinds: tuple[tuple[Kind, str], ...] = (("commit", "git_commit"), ("driver", "driver"))
    for by, column in kinds:
        value = getattr(run, column, "")
        if value:
            yield _counted(connection, by, value, query.of_column(connection, column, value, **scope))


def _host(streams: Sequence[Row[Any]], stream: str) -> str:
    ranks = [row for row in streams if row.role == "rank"]
    named = [row for row in ranks if row.id == stream] or sorted(ranks, key=lambda row: (row.rank, -row.started))
    return named[0].host if named else ""


def _counted(connection: Connection, by: Kind, value: str, rows: Sequence[Row[Any]]) -> Related:
    broken = query.open_incidents(connection, [row.id for row in rows]) if rows else set()
    first = sorted(rows, key=lambda row: row.id not in broken)[:MAX_LISTED]
    items = [
        RelatedRun(row.id, row.name, row.project, row.state, instant(row.started), row.id in broken) for row in first
    ]
    return Related(by, value, len(rows), len(broken), items)
