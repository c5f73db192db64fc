"""Runs, streams and findings written straight into the tables, for tests of the judge and the outbox."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
from sqlalchemy import select, update

from ammeter.verdicts.framework.finding import Finding
from ammeter_server.db import Store
from ammeter_server.db.tables import findings, runs, streams

NOW = 10**18
SECOND = 10**9
PAGE = Finding("scale-collapse", "page", 10, 12, 15, "why", "do", "It fell")


def add_run(store: Store, **values: Any) -> str:
    run = str(uuid.uuid4())
    with store.writing() as connection:
        row = {"id": run, "name": "night", "project": "speech", "started": 1} | values
        connection.execute(runs.insert().values(row))
    return run


def add_stream(store: Store, run: str, **values: Any) -> str:
    stream = uuid.uuid4().hex
    defaults = {"run": run, "id": stream, "schema": "0", "last_seen": NOW, "version": 1, "started": 1}
    with store.writing() as connection:
        connection.execute(streams.insert().values(defaults | values))
    return stream


def conclude(store: Store, run: str, stream: str, finding: Finding) -> None:
    """Stores a finding of a stream, which makes its run due."""
    row = {"run": run, "stream": stream, "verdict": finding.verdict, "active": finding.active}
    with store.writing() as connection:
        connection.execute(findings.delete().where(findings.c.stream == stream, findings.c.verdict == finding.verdict))
        connection.execute(findings.insert().values(row | {"body": msgspec.structs.asdict(finding)}))
        connection.execute(update(streams).where(streams.c.id == stream).values(version=streams.c.version + 1))


def rows(store: Store, table: Any) -> list[Any]:
    with store.reading() as connection:
        return list(connection.execute(select(table)))
