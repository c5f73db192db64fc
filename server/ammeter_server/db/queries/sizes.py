"""Queries of `ammeter-server storage` on the use of space.

They read the sizes of all rows of bulk data, but not the contents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, func, literal, select, union_all
from sqlalchemy.types import BigInteger, LargeBinary, Text

from ammeter_server.db.column_types import Document
from ammeter_server.db.step_tables import PARTITIONED_TABLES, chunks, segments
from ammeter_server.db.tables import metadata, runs


class Size(NamedTuple):
    """Bytes of stored values, without the database's overhead. rows: of the database, or steps."""

    name: str
    rows: int
    bytes: int


def by_table(connection: Connection) -> list[Size]:
    """Returns the size of each table, the largest first."""
    table_sizes = []
    for table in metadata.sorted_tables:
        rows, size = connection.execute(select(*_sums(table))).one()
        table_sizes.append(Size(table.name, int(rows), int(size)))
    return sorted(table_sizes, key=lambda size: -size.bytes)


def by_day(connection: Connection) -> list[tuple[int, int]]:
    """Returns (day, bytes) of bulk data, the oldest day first."""
    parts = [select(t.c.day.label("by"), _sums(t)[1].label("bytes")).group_by(t.c.day) for t in PARTITIONED_TABLES]
    return _summed(connection, parts)


def by_run(connection: Connection, limit: int) -> list[Size]:
    """Returns the largest runs: id with name, steps of all ranks, bytes."""
    parts = [select(t.c.run.label("by"), _sums(t)[1].label("bytes")).group_by(t.c.run) for t in PARTITIONED_TABLES]
    largest = sorted(_summed(connection, parts), key=lambda row: -row[1])[:limit]
    ids = [run for run, _ in largest]
    names = {row.id: row.name for row in connection.execute(select(runs.c.id, runs.c.name).where(runs.c.id.in_(ids)))}
    steps = dict(_steps(connection, ids))
    return [Size(f"{run} {names.get(run, '')}".strip(), steps.get(run, 0), size) for run, size in largest]


def waiting(connection: Connection) -> tuple[int, int]:
    """Returns (rows in blocks, rows in segments)."""
    sums = [select(func.coalesce(func.sum(table.c.rows), 0)) for table in (chunks, segments)]
    blocks, columns = (int(connection.execute(query).scalar_one()) for query in sums)
    return blocks, columns


def _steps(connection: Connection, ids: Sequence[str]) -> list[tuple[str, int]]:
    parts = [select(t.c.run.label("by"), t.c.rows.label("bytes")).where(t.c.run.in_(ids)) for t in (chunks, segments)]
    return _summed(connection, parts)


def _summed(connection: Connection, parts: Sequence[Select[Any]]) -> list[tuple[Any, int]]:
    summands = union_all(*parts).subquery()
    query = select(summands.c.by, func.sum(summands.c.bytes)).group_by(summands.c.by).order_by(summands.c.by)
    return [(by, int(size)) for by, size in connection.execute(query)]


def _sums(table: Any) -> tuple[ColumnElement[int], ColumnElement[int]]:
    """Returns expressions for (rows, bytes) of a table.

    A number counts as eight bytes, a text or an array as its length.
    """
    size: ColumnElement[int] = literal(0, BigInteger)
    for column in table.c:
        variable = isinstance(column.type, LargeBinary | Text | Document)
        size = size + (func.coalesce(func.length(column, type_=BigInteger), 0) if variable else 8)
    return func.count(), func.coalesce(func.sum(size), 0)
