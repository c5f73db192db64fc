"""What a collector's database holds of a run, read from its tables: rows and events, the counters, what was found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
from sqlalchemy import Table, select, text

from ammeter.wire import columns as block
from ammeter.wire import frames
from ammeter_server.db import Connection, Row, column_codec, connect, step_tables, tables

Rows = dict[str, list[tuple[int, bytes]]]
"""Stream -> (step, the bits of its row)."""

STREAM_VERDICTS = (
    *("role", "rank", "world_size", "started", "acknowledged", "rows", "events", "last_step", "last_step_time"),
    *("precision", "latest", "counters", "lost", "faults", "bye", "bye_reason"),
)
OF_AN_INCIDENT = (
    *("verdict", "number", "severity", "closed_reason", "first_step", "opened_step"),
    *("rank", "tensor", "module", "caller"),
)


@contextmanager
def opened(url: str) -> Iterator[Connection]:
    """A look into the database, beside whoever else works with it."""
    store = connect(url)
    try:
        with store.reading() as connection:
            yield connection
    finally:
        store.close()


def rows(connection: Connection, run: str) -> Rows:
    """Every row that is stored, those that are there twice as well."""
    schemas = {
        (row.stream, row.id): msgspec.msgpack.decode(row.body, type=frames.Schema)
        for row in table(connection, tables.schemas, run)
    }
    blocks = sorted(table(connection, step_tables.chunks, run), key=lambda row: (row.stream, row.first_step))
    found = _compacted(connection, run, schemas)  # read later, so that what a keeper moves meanwhile is in either
    reach = {stream: there[-1][0] for stream, there in found.items()}
    for row in blocks:
        if row.last_step > reach.get(row.stream, -1):  # the others are on their way out
            packed = frames.Block(row.schema, row.rows, row.columns, row.first_step, row.last_step, row.data)
            found.setdefault(row.stream, []).extend(bits(block.unpack(packed, schemas[row.stream, row.schema])))
    return found


def events(connection: Connection, run: str) -> dict[str, list[tuple[int, str, int, int, Any]]]:
    """Stream -> (number, name, step, time, data) of every event, in order."""
    found: dict[str, list[tuple[int, str, int, int, Any]]] = {}
    for row in sorted(table(connection, step_tables.events, run), key=lambda row: (row.stream, row.number)):
        found.setdefault(row.stream, []).append((row.number, row.name, row.step, row.time, row.data))
    return found


def streams(connection: Connection, run: str) -> dict[str, dict[str, Any]]:
    """Stream -> what its row says of what it holds."""
    found = table(connection, tables.streams, run)
    return {row.id: {name: rounded(row._mapping[name]) for name in STREAM_VERDICTS} for row in found}


def findings(connection: Connection, run: str, but: frozenset[str] = frozenset()) -> dict[tuple[str, str], Any]:
    """(Stream, verdict) -> what it concluded, without some verdicts."""
    found = table(connection, tables.findings, run)
    return {(row.stream, row.verdict): row.body for row in found if row.verdict not in but}


def incidents(connection: Connection, run: str, but: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """What people are shown, without some verdicts, and without those that another incident took over: whether a
    consequence was told before its cause depends on when the judge looked."""
    found = sorted(table(connection, tables.incidents, run), key=lambda row: row.id)
    shown = [row for row in found if row.verdict not in but and row.closed_reason != "superseded"]
    return [{name: row._mapping[name] for name in OF_AN_INCIDENT} for row in shown]


def totals(connection: Connection, project: str) -> dict[tuple[str, str, str], int]:
    """(Name, outcome, verdict) -> what the fleet's counters say of a project."""
    found = connection.execute(select(tables.totals).where(tables.totals.c.project == project)).all()
    return {(row.name, row.outcome, row.verdict): row.value for row in found}


def state(connection: Connection, run: str) -> str | None:
    return connection.execute(select(tables.runs.c.state).where(tables.runs.c.id == run)).scalar_one_or_none()


def table(connection: Connection, of: Table, run: str) -> list[Row[Any]]:
    """The run's rows of a table."""
    return list(connection.execute(select(of).where(of.c.run == run)))


def rounded(value: Any) -> Any:
    """Sums of floats differ in their last bits by the order they are added in."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return round(value, 6) if isinstance(value, float) else value


def bits(view: block.View) -> list[tuple[int, bytes]]:
    rows = np.ascontiguousarray(view.values.T)
    return [(int(step), row.tobytes()) for step, row in zip(view.steps, rows, strict=True)]


def _compacted(connection: Connection, run: str, schemas: Mapping[tuple[str, str], frames.Schema]) -> Rows:
    """The rows that are columns already."""
    found: Rows = {}
    parts: dict[tuple[str, int], list[Row[Any]]] = {}
    for part in table(connection, step_tables.columns, run):
        parts.setdefault((part.stream, part.first_step), []).append(part)
    for row in sorted(table(connection, step_tables.segments, run), key=lambda row: (row.stream, row.first_step)):
        schema = schemas[row.stream, row.schema]
        values = np.full((schema.width, row.rows), block.ABSENT, np.float32)
        for part in parts.get((row.stream, row.first_step), []):
            for which, told in column_codec.read_head(part.head, range(column_codec.TOGETHER)).items():
                values[part.part * column_codec.TOGETHER + which] = column_codec.unpack(
                    told.few or part.data[told.data], row.rows
                )
        steps, times = (column_codec.unpack_whole(each, row.rows) for each in (row.steps, row.times))
        found.setdefault(row.stream, []).extend(bits(block.View(schema, steps, times, values)))
    return found


def sessions(connection: Connection) -> str:
    """PostgreSQL's sessions: who waits for whom, and in what."""
    if connection.dialect.name != "postgresql":
        return ""
    asked = "pid, state, wait_event_type, wait_event, pg_blocking_pids(pid), now() - xact_start, left(query, 120)"
    return "\n".join(map(str, connection.execute(text(f"SELECT {asked} FROM pg_stat_activity"))))
