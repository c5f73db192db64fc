"""Rows of a stream, from its segments and later blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Protocol

import numpy as np
from sqlalchemy import Connection, Row, Table, bindparam, select

from ammeter.wire import columns as block
from ammeter.wire import frames
from ammeter_server.db.integer_codec import unpack_integers
from ammeter_server.db.prepared import Prepared
from ammeter_server.db.queries.steps.columns import stored_columns
from ammeter_server.db.queries.steps.stream_info import (
    ColumnSelection,
    StreamInfo,
    reduced_schema,
    stream_info,
    stream_rows,
)
from ammeter_server.db.step_tables import chunks, segments

CHUNKS_PER_READ = 128
"""Chunks per read transaction, so that the read of a long run keeps no snapshot open for long."""

SEGMENTS_PER_READ = 8

MAX_STEP = 2**63 - 1
MAX_ROWS = 2**31 - 1
"""Bounds of a query that has none, above all steps of a stream and the number of its rows."""


class Readable(Protocol):
    """Where rows are read from: a Store, in short transactions of their own, or InTransaction."""

    def reading(self) -> AbstractContextManager[Connection]: ...


@dataclass(frozen=True)
class InTransaction:
    """Reads rows in a transaction that has begun."""

    connection: Connection

    def reading(self) -> AbstractContextManager[Connection]:
        return nullcontext(self.connection)


def _between(table: Table) -> Prepared:
    """Selects rows of a stream by their steps: built once, because the judge runs it for every rank."""
    of_steps = (table.c.last_step > bindparam("of_after"), table.c.first_step <= bindparam("of_last"))
    query = select(table).where(*stream_rows(table), *of_steps)
    return Prepared(query.order_by(table.c.first_step).limit(bindparam("of_limit")))


_segments_between, _chunks_between = _between(segments), _between(chunks)


def views(
    store: Readable,
    run: str,
    stream: str,
    first: int | None,
    last: int | None,
    selection: ColumnSelection | None = None,
) -> Iterator[block.View]:
    """Yields the stream's rows from step `first` on, up to the view that contains `last`.

    With `selection` the views have only these columns. Without it they have all, which is slow if there are many.
    """
    after = (first or 0) - 1
    with store.reading() as connection:
        info = stream_info(connection, run, stream)
        rows = next_rows(connection, info, after, last)
    yield from views_from(store, info, rows, after, last, selection)


def views_from(
    store: Readable,
    info: StreamInfo,
    rows: Sequence[Any],
    after: int,
    last: int | None,
    selection: ColumnSelection | None = None,
) -> Iterator[block.View]:
    """Yields the same for a stream whose facts and first rows after a step were read, by next_rows()."""
    while rows:
        for row in rows:
            view = _after(_view(store, info, row, selection), after)
            if len(view):
                yield view
        after = rows[-1].last_step
        if _is_block(rows[-1]) and len(rows) < CHUNKS_PER_READ:  # there were no more
            return
        with store.reading() as connection:
            rows = next_rows(connection, info, after, last)


def latest_views(
    store: Readable, run: str, stream: str, limit: int, selection: ColumnSelection | None = None
) -> Iterator[block.View]:
    """Yields the stream's newest rows, newest first: its last `limit` blocks and last segments."""
    with store.reading() as connection:
        info = stream_info(connection, run, stream)
        query = select(chunks).where(*info.rows_of(chunks)).order_by(chunks.c.first_step.desc()).limit(limit)
        blocks = connection.execute(query).all()
        newest = select(segments).where(*info.rows_of(segments)).order_by(segments.c.first_step.desc())
        last = connection.execute(newest.limit(SEGMENTS_PER_READ)).all()
    covered = last[0].last_step if last else -1
    later = [row for row in blocks if row.last_step > covered and row.schema in info.schemas]
    yield from (_after(_view(store, info, row, selection), covered) for row in later)
    yield from (_view(store, info, row, selection) for row in last if row.schema in info.schemas)


def segments_of(
    connection: Connection, info: StreamInfo, after: int, last: int | None, limit: int | None = None
) -> Sequence[Any]:
    """Returns the stream's segments with steps after `after`, in order."""
    rows = _execute(connection, _segments_between, info, after, last, limit)
    return list(takewhile(lambda row: row.schema in info.schemas, rows))  # the others were added after `info` was read


def next_rows(connection: Connection, info: StreamInfo, after: int, last: int | None) -> Sequence[Any]:
    """Returns some segments after a step, or blocks if there are none, up to the one that contains `last`."""
    if last is not None and after >= last:
        return []
    rows_of_segments = segments_of(connection, info, after, last, SEGMENTS_PER_READ)
    if rows_of_segments:
        return rows_of_segments
    rows = _execute(connection, _chunks_between, info, after, last, CHUNKS_PER_READ)
    if connection.dialect.name == "postgresql":
        # compaction may have converted and deleted some blocks after the first query for segments
        converted = segments_of(connection, info, after, last, SEGMENTS_PER_READ)
        if converted:
            return converted
    return list(takewhile(lambda row: row.schema in info.schemas, rows))


def _execute(
    connection: Connection, query: Prepared, info: StreamInfo, after: int, last: int | None, limit: int | None
) -> Sequence[Any]:
    bounds = {"of_after": after, "of_last": MAX_STEP if last is None else last, "of_limit": limit or MAX_ROWS}
    return query.named(connection, info.parameters | bounds)


def _view(store: Readable, info: StreamInfo, row: Row[Any], selection: ColumnSelection | None) -> block.View:
    """Reads the rows of a segment or a block."""
    schema, places = reduced_schema(info, row.schema, selection)
    if _is_block(row):
        packed = frames.Block(row.schema, row.rows, row.columns, row.first_step, row.last_step, row.data)
        return block.View(
            schema, *block.unpack_columns(packed, info.schemas[row.schema], places if selection else None)
        )
    values = np.full((len(places), row.rows), block.ABSENT, np.float32)
    where = {place: index for index, place in enumerate(places)}
    with store.reading() as connection:
        for column in stored_columns(connection, info, places, row.first_step, row.first_step):
            values[where[column.place]] = column.values(row.rows)
    return block.View(schema, unpack_integers(row.steps, row.rows), unpack_integers(row.times, row.rows), values)


def _is_block(row: Row[Any]) -> bool:
    return "data" in row._fields


def _after(view: block.View, after: int) -> block.View:
    """Returns the rows after a step; nearly always all of them."""
    begin = int(np.searchsorted(view.steps, after, "right"))
    return view.rows(begin, len(view)) if begin else view
