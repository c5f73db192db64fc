"""Queries behind appending to a stream: all on one stream's rows, under the lock of its row in streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, and_, func, select, update

from ammeter_server.store.engine import insert_or_ignore, upsert
from ammeter_server.tables import chunks, events, findings, projects, runs, schemas, streams


def lock(connection: Connection, run: str, stream: str) -> Row[Any] | None:
    """The stream's row, held until the transaction ends; None for a stream that nobody has opened."""
    query = select(streams).where(streams.c.run == run, streams.c.id == stream).with_for_update()
    return connection.execute(query).one_or_none()


def run_project(connection: Connection, run: str) -> str | None:
    return connection.execute(select(runs.c.project).where(runs.c.id == run)).scalar_one_or_none()


def count(connection: Connection, run: str) -> int:
    return connection.execute(select(func.count()).where(streams.c.run == run)).scalar_one()


def add_run(connection: Connection, run: str, said: Mapping[str, Any]) -> None:
    """Makes the run's row, once. A row that was made before its first hello (started = 0) is filled in."""
    connection.execute(insert_or_ignore(connection, projects).values(name=said["project"], created=said["started"]))
    connection.execute(insert_or_ignore(connection, runs).values(id=run, **said))
    if said["started"]:
        connection.execute(update(runs).where(runs.c.id == run, runs.c.started == 0).values(**said))


def add(connection: Connection, run: str, stream: str, now: int) -> None:
    """Makes the stream's row unless somebody else just did."""
    connection.execute(insert_or_ignore(connection, streams).values(run=run, id=stream, heard=now))


def schema(connection: Connection, run: str, stream: str, schema_id: str) -> bytes:
    query = select(schemas.c.body).where(schemas.c.run == run, schemas.c.stream == stream, schemas.c.id == schema_id)
    body: bytes = connection.execute(query).scalar_one()
    return body


def count_schemas(connection: Connection, run: str, stream: str) -> int:
    return connection.execute(select(func.count()).where(schemas.c.run == run, schemas.c.stream == stream)).scalar_one()


def add_schema(connection: Connection, run: str, stream: str, schema_id: str, body: bytes) -> None:
    row = {"run": run, "stream": stream, "id": schema_id, "body": body}
    connection.execute(insert_or_ignore(connection, schemas).values(row))


def add_chunks(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        connection.execute(chunks.insert(), rows)


def add_events(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        connection.execute(events.insert(), rows)


def put_finding(connection: Connection, run: str, stream: str, verdict: str, body: Mapping[str, Any], now: int) -> None:
    """Writes what a verdict concludes now over what it concluded before."""
    row = {"run": run, "stream": stream, "verdict": verdict, "body": body, "active": body["active"], "found": now}
    connection.execute(upsert(connection, findings, row))


def put(connection: Connection, run: str, stream: str, values: Mapping[str, Any]) -> None:
    connection.execute(update(streams).where(streams.c.run == run, streams.c.id == stream).values(**values))


def silent(connection: Connection, before: int) -> list[tuple[str, str]]:
    """(run, id) of streams of running runs that nobody has spoken for since `before` and that said no goodbye."""
    query = (
        select(streams.c.run, streams.c.id)
        .join(runs, runs.c.id == streams.c.run)
        .where(streams.c.heard < before, streams.c.bye_reason.is_(None), runs.c.state == "running")
    )
    return [(run, stream) for run, stream in connection.execute(query)]


def still(connection: Connection, before: int, since: int) -> list[tuple[str, str]]:
    """(run, id) of streams that are spoken for since `since`, are up to date, and made no step after `before`.

    The step's time is of the training host's clock. One that is behind has its stream asked too often, no more.
    """
    query = (
        select(streams.c.run, streams.c.id)
        .join(runs, runs.c.id == streams.c.run)
        .where(streams.c.last_step_time < before, streams.c.heard >= since, streams.c.alive.is_(True))
        .where(streams.c.backlog == 0, streams.c.bye_reason.is_(None), runs.c.state == "running")
    )
    return [(run, stream) for run, stream in connection.execute(query)]


def back(connection: Connection, since: int, verdict: str) -> list[tuple[str, str]]:
    """(run, id) of streams that a verdict holds against although somebody has spoken for them since."""
    same = and_(findings.c.run == streams.c.run, findings.c.stream == streams.c.id)
    query = (
        select(streams.c.run, streams.c.id)
        .join(findings, same)
        .where(findings.c.verdict == verdict, findings.c.active.is_(True))
        .where(streams.c.heard >= since, streams.c.bye_reason.is_(None))
    )
    return [(run, stream) for run, stream in connection.execute(query)]
