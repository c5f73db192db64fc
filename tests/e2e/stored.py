"""Reads the stored data of a run from the collector's tables: rows, events, counters, findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
from sqlalchemy import Table, select, text

from ammeter.wire import columns as block
from ammeter.wire import frames
from ammeter_server.db import Connection, Row, column_codec, connect, integer_codec, step_tables, tables

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
    """Opens the database read-only beside its other users."""
    store = connect(url)
    try:
        with store.reading() as connection:
            yield connection
    finally:
        store.close()


def rows(connection: Connection, run: str) -> Rows:
    """Returns every stored row, including duplicates."""
    schemas = {
        (row.stream, row.id): msgspec.msgpack.decode(row.body, type=frames.Schema)
        for row in table(connection, tables.schemas, run)
    }
    blocks = sorted(table(connection, step_tables.chunks, run), key=lambda row: (row.stream, row.first_step))
    found = _compacted(connection, run, schemas)  # read after the blocks: rows moved meanwhile are in either
    reach = {stream: there[-1][0] for stream, there in found.items()}
    for row in blocks:
        if row.last_step > reach.get(row.stream, -1):  # the others are about to be deleted
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
    """Stream -> the columns of its row that describe its content."""
    found = table(connection, tables.streams, run)
    return {row.id: {name: rounded(row._mapping[name]) for name in STREAM_VERDICTS} for row in found}


def findings(connection: Connection, run: str, but: frozenset[str] = frozenset()) -> dict[tuple[str, str], Any]:
    """(Stream, verdict) -> its finding, without the verdicts of `but`."""
    found = table(connection, tables.findings, run)
    return {(row.stream, row.verdict): row.body for row in found if row.verdict not in but}


def incidents(connection: Connection, run: str, but: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """Returns the incidents as shown to people, without some verdicts and superseded ones.

    Whether a consequence was reported before its cause depends on when the judge ran.
    """
    found = sorted(table(connection, tables.incidents, run), key=lambda row: row.id)
    shown = [row for row in found if row.verdict not in but and row.closed_reason != "superseded"]
    return [{name: row._mapping[name] for name in OF_AN_INCIDENT} for row in shown]


def totals(connection: Connection, project: str) -> dict[tuple[str, str, str], int]:
    """(Name, outcome, verdict) -> the fleet's counters of a project."""
    found = connection.execute(select(tables.totals).where(tables.totals.c.project == project)).all()
    return {(row.name, row.outcome, row.verdict): row.value for row in found}


def state(connection: Connection, run: str) -> str | None:
    return connection.execute(select(tables.runs.c.state).where(tables.runs.c.id == run)).scalar_one_or_none()


def table(connection: Connection, of: Table, run: str) -> list[Row[Any]]:
    """Returns the run's rows of a table."""
    return list(connection.execute(select(of).where(of.c.run == run)))


def rounded(value: Any) -> Any:
    """Round floats: sums differ in their last bits with the order of addition."""
    if isinstance(value, dict):
        return {name: rounded(number) for name, number in value.items()}
    return round(value, 6) if isinstance(value, float) else value


def bits(view: block.View) -> list[tuple[int, bytes]]:
    rows = np.ascontiguousarray(view.values.T)
    return [(int(step), row.tobytes()) for step, row in zip(view.steps, rows, strict=True)]


def _compacted(connection: Connection, run: str, schemas: Mapping[tuple[str, str], frames.Schema]) -> Rows:
    """Returns rows that are columns already."""
    found: Rows = {}
    parts: dict[tuple[str, int], list[Row[Any]]] = {}
    for part in table(connection, step_tables.columns, run):
        parts.setdefault((part.stream, part.first_step), []).append(part)
    for row in sorted(table(connection, step_tables.segments, run), key=lambda row: (row.stream, row.first_step)):
        schema = schemas[row.stream, row.schema]
        values = np.full((schema.width, row.rows), block.ABSENT, np.float32)
        for part in parts.get((row.stream, row.first_step), []):
            for which, header in column_codec.read_head(part.head, range(column_codec.COLUMNS_PER_PART)).items():
                values[part.part * column_codec.COLUMNS_PER_PART + which] = column_codec.unpack(
                    header.few or part.data[header.data], row.rows
                )
        steps, times = (integer_codec.unpack_integers(block, row.rows) for block in (row.steps, row.times))
        found.setdefault(row.stream, []).extend(bits(block.View(schema, steps, times, values)))
    return found


def sessions(connection: Connection) -> str:
    """Returns PostgreSQL's sessions with their locks and queries."""
    if connection.dialect.name != "postgresql":
        return ""
    asked = "pid, state, wait_event_type, wait_event, pg_blocking_pids(pid), now() - xact_start, left(query, 120)"
    return "\n".join(map(str, connection.execute(text(f"SELECT {asked} FROM pg_stat_activity"))))
