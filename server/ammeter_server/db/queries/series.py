"""Queries of curves and tensors: a stream's rows from its segments and later blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby, takewhile
from typing import Any, NamedTuple

import msgspec
import numpy as np
from sqlalchemy import ColumnElement, Connection, Row, Select, Table, case, select

from ammeter.wire import columns as block
from ammeter.wire import frames
from ammeter.wire.columns import Floats
from ammeter.wire.ranks import Life
from ammeter_server.db.column_codec import TOGETHER, ColumnHeader, read_head, unpack, unpack_whole
from ammeter_server.db.engine import Store
from ammeter_server.db.step_tables import chunks, columns, day_of, events, segments
from ammeter_server.db.tables import schemas, streams

CHUNKS_PER_READ = 128
"""Chunks per read transaction, so that the read of a long run keeps no snapshot open for long."""

MAX_LATE_EVENTS = 20_000
"""Newest events of a stream that are searched for late values: about 20 ms, which a chart can afford."""

SEGMENTS_PER_READ = 8
PARTS_PER_QUERY = 500
"""Rows of `columns` per statement in queries by part."""


class Source(NamedTuple):
    """A stream with steps.

    Attributes:
        rows: Rows received so far.
        schema: The schema of the last rows.
    """

    id: str
    rank: int
    started: int = 0
    rows: int = 0
    schema: str | None = None
    last_step: int | None = None


class Wanted(NamedTuple):
    """A selection of columns: scalars, and stats of all tensors."""

    scalars: tuple[str, ...] = ()
    stats: tuple[str, ...] = ()


Reduced = tuple[frames.Schema, Sequence[int]]
"""A schema with a selection of columns, and their positions in the complete schema."""


class Known(NamedTuple):
    """Facts about a stream that reads of its rows need.

    Attributes:
        schemas: id -> schema.
        first_day: Its rows have this day or a later one.
        reduced: Cache of _reduced().
    """

    run: str
    stream: str
    schemas: Mapping[str, frames.Schema]
    first_day: int
    reduced: dict[tuple[str, Wanted | None], Reduced]

    def rows_of(self, table: Table) -> tuple[ColumnElement[bool], ...]:
        """Returns the conditions for the stream's rows.

        The day excludes PostgreSQL's partitions from before the stream began.
        """
        return table.c.run == self.run, table.c.stream == self.stream, table.c.day >= self.first_day


def sources(
    connection: Connection, run: str, ranks: Sequence[int] | None = None, stream: str | None = None
) -> list[Source]:
    """Returns the run's streams with steps, by rank, and by time within a rank."""
    whole = (streams.c.id, streams.c.rank, streams.c.started, streams.c.rows, streams.c.schema, streams.c.last_step)
    query = select(*whole).where(streams.c.run == run, streams.c.role == "rank")
    if ranks is not None:
        query = query.where(streams.c.rank.in_(ranks))
    if stream is not None:
        query = query.where(streams.c.id == stream)
    return [Source(*row) for row in connection.execute(query.order_by(streams.c.rank, streams.c.started, streams.c.id))]


def standing(connection: Connection, run: str, of: Sequence[Source]) -> list[tuple[Any, ...]]:
    """Returns values that change with each new row or event of these streams.

    They change with deletions, too, which affect the first rows.
    """
    begins = [
        select(table.c.first_step)
        .where(table.c.run == run, table.c.stream == streams.c.id)
        .order_by(table.c.first_step)
        .limit(1)
        .scalar_subquery()
        for table in (segments, chunks)
    ]
    query = select(streams.c.id, streams.c.events, *begins).where(
        streams.c.run == run, streams.c.id.in_([life.id for life in of])
    )
    first = {row[0]: tuple(row[1:]) for row in connection.execute(query)}
    return [(*life, first.get(life.id)) for life in of]


def lives(connection: Connection, run: str) -> list[Life]:
    """Returns the run's streams with steps, with the times that group them into lives."""
    whole = (streams.c.id, streams.c.rank, streams.c.world_size, streams.c.started)
    end = (streams.c.last_step_time, streams.c.bye, streams.c.bye_reason)
    query = select(*whole, *end).where(streams.c.run == run, streams.c.role == "rank", streams.c.schema.is_not(None))
    return [Life(*row[:4], _ended(row.started, *row[4:])) for row in connection.execute(query)]


def _ended(started: int, last_step_time: int | None, bye: Mapping[str, Any], reason: str | None) -> int | None:
    """Returns the time at which the process ended; None while it runs.

    For a process that was lost the time of its last step, as its end is recorded later.
    """
    if reason is None:
        return None
    return last_step_time or started if reason == "lost" else int(bye["time"])


def known(connection: Connection, run: str, stream: str) -> Known:
    """Reads the facts about a stream. An unknown stream has no schemas.

    To be called before its rows are read.
    """
    query = select(schemas.c.id, schemas.c.body).where(schemas.c.run == run, schemas.c.stream == stream)
    bodies = {name: _schema(bytes(body)) for name, body in connection.execute(query)}
    span = select(streams.c.opened, streams.c.heard).where(streams.c.run == run, streams.c.id == stream)
    opened, heard = connection.execute(span).one_or_none() or (0, 0)
    right = opened <= heard  # else the clock was set back, and the days of the rows are unknown
    return Known(run, stream, bodies, day_of(opened) - 1 if right else 0, {})  # collectors' clocks differ a little


@lru_cache(8)
def _schema(body: bytes) -> frames.Schema:
    found: frames.Schema = msgspec.msgpack.decode(body, type=frames.Schema)
    return found


def views(
    store: Store, run: str, stream: str, first: int | None, last: int | None, wanted: Wanted | None = None
) -> Iterator[block.View]:
    """Yields the stream's rows from step `first` on, up to the view that contains `last`.

    With `wanted` the views have only these columns. Without it they have all, which is slow if there are many.
    """
    with store.reading() as connection:
        of = known(connection, run, stream)
    after = (first or 0) - 1
    while last is None or after < last:
        with store.reading() as connection:
            rows = _next(connection, of, after, last)
        if not rows:
            return
        for row in rows:
            view = _behind(_view(store, of, row, wanted), after)
            if len(view):
                yield view
        after = rows[-1].last_step


def latest_views(store: Store, run: str, stream: str, limit: int, wanted: Wanted | None = None) -> Iterator[block.View]:
    """Yields the stream's newest rows, newest first: its last `limit` blocks and last segments."""
    with store.reading() as connection:
        of = known(connection, run, stream)
        query = select(chunks).where(*of.rows_of(chunks)).order_by(chunks.c.first_step.desc()).limit(limit)
        blocks = connection.execute(query).all()
        newest = select(segments).where(*of.rows_of(segments)).order_by(segments.c.first_step.desc())
        last = connection.execute(newest.limit(SEGMENTS_PER_READ)).all()
    covered = last[0].last_step if last else -1
    behind = [row for row in blocks if row.last_step > covered and row.schema in of.schemas]
    yield from (_behind(_view(store, of, row, wanted), covered) for row in behind)
    yield from (_view(store, of, row, wanted) for row in last if row.schema in of.schemas)


def segments_of(
    connection: Connection, of: Known, after: int, last: int | None, limit: int | None = None
) -> Sequence[Row[Any]]:
    """Returns the stream's segments with steps after `after`, in order."""
    query = select(segments).where(*of.rows_of(segments), segments.c.last_step > after)
    if last is not None:
        query = query.where(segments.c.first_step <= last)
    rows = connection.execute(query.order_by(segments.c.first_step).limit(limit)).all()
    return list(takewhile(lambda row: row.schema in of.schemas, rows))  # the others were added after `of` was read


class Stored(NamedTuple):
    """One column of one segment.

    Attributes:
        place: Its index in the segment's schema.
        told: Its header.
        data: Its packed values; None if they were not requested and the column is not short.
    """

    place: int
    first_step: int
    told: ColumnHeader
    data: bytes | None

    def values(self, rows: int) -> Floats:
        assert self.data is not None
        return unpack(self.data, rows)


def stored(
    connection: Connection,
    of: Known,
    places: Iterable[int],
    first: int,
    last: int,
    with_data: Sequence[int] | None = None,
) -> Iterator[Stored]:
    """Yields these columns, one after the other, in the segments that begin between these steps.

    with_data: first steps of the segments whose values are read; None for all.
    """
    wanted: dict[int, list[int]] = {}
    for place in sorted(places):
        wanted.setdefault(place // TOGETHER, []).append(place % TOGETHER)
    data = columns.c.data if with_data is None else case((columns.c.first_step.in_(with_data), columns.c.data))
    query: Select[Any] = select(columns.c.part, columns.c.first_step, columns.c.head, data.label("data")).where(
        *of.rows_of(columns)
    )
    query = query.where(columns.c.first_step.between(first, last)).order_by(columns.c.part, columns.c.first_step)
    parts = list(wanted)
    for begin in range(0, len(parts), PARTS_PER_QUERY):
        rows = connection.execute(query.where(columns.c.part.in_(parts[begin : begin + PARTS_PER_QUERY])))
        for part, group in groupby(rows, key=lambda row: row.part):
            heads = [(row, read_head(bytes(row.head), wanted[part])) for row in group]
            for which in wanted[part]:
                yield from (_stored(part, which, row, head[which]) for row, head in heads if which in head)


def _stored(part: int, which: int, row: Row[Any], told: ColumnHeader) -> Stored:
    data = told.few or (None if row.data is None else row.data[told.data])
    return Stored(part * TOGETHER + which, row.first_step, told, data)


def said(
    connection: Connection, run: str, stream: str, names: Sequence[str], first: int
) -> list[tuple[int, str, int, dict[str, Any]]]:
    """Returns (number, name, step, data) of events of these names from number `first` on."""
    query = select(events.c.number, events.c.name, events.c.step, events.c.data)
    query = query.where(events.c.run == run, events.c.stream == stream, events.c.number >= first)
    query = query.where(events.c.name.in_(names)).order_by(events.c.number)
    return [(row.number, row.name, row.step, row.data) for row in connection.execute(query)]


def logged(connection: Connection, run: str, stream: str, first: int, last: int | None) -> list[Row[Any]]:
    """Returns (step, time, data) of late run.log values for steps between these.

    Late values belong to steps whose rows were already written. Searches the stream's newest MAX_LATE_EVENTS events.
    """
    count = connection.execute(select(streams.c.events).where(streams.c.run == run, streams.c.id == stream)).scalar()
    query = select(events.c.step, events.c.time, events.c.data)
    query = query.where(
        events.c.run == run, events.c.stream == stream, events.c.number >= (count or 0) - MAX_LATE_EVENTS
    )
    query = query.where(events.c.name == "values.logged", events.c.step >= first)
    if last is not None:
        query = query.where(events.c.step <= last)
    return list(connection.execute(query.order_by(events.c.number)))


def _reduced(of: Known, name: str, wanted: Wanted | None) -> Reduced:
    """Returns the schema of that name with the wanted columns only."""
    if (name, wanted) not in of.reduced:
        of.reduced[name, wanted] = _with(of.schemas[name], wanted)
    return of.reduced[name, wanted]


def _with(schema: frames.Schema, wanted: Wanted | None) -> Reduced:
    if wanted is None:
        return schema, range(schema.width)
    scalars = tuple(name for name in wanted.scalars if name in schema.scalars)
    stats = tuple(name for name in wanted.stats if name in schema.stats)
    spans = (schema.span(name) for name in stats)
    places = [schema.scalars.index(name) for name in scalars]
    places += [place for span in spans for place in range(span.start, span.stop)]
    return frames.Schema(scalars, stats, schema.tensors), places


def _next(connection: Connection, of: Known, after: int, last: int | None) -> Sequence[Row[Any]]:
    """Returns some segments after a step, or blocks if there are none."""
    found = segments_of(connection, of, after, last, SEGMENTS_PER_READ)
    if found:
        return found
    query = select(chunks).where(*of.rows_of(chunks), chunks.c.last_step > after)
    if last is not None:
        query = query.where(chunks.c.first_step <= last)
    rows = connection.execute(query.order_by(chunks.c.first_step).limit(CHUNKS_PER_READ)).all()
    # compaction may have converted and deleted some blocks after the first query for segments
    again = segments_of(connection, of, after, last, SEGMENTS_PER_READ)
    return again or list(takewhile(lambda row: row.schema in of.schemas, rows))


def _view(store: Store, of: Known, row: Row[Any], wanted: Wanted | None) -> block.View:
    """Reads the rows of a segment or a block."""
    schema, places = _reduced(of, row.schema, wanted)
    if "data" in row._fields:
        packed = frames.Block(row.schema, row.rows, row.columns, row.first_step, row.last_step, row.data)
        view = block.unpack(packed, of.schemas[row.schema])
        return view if wanted is None else block.View(schema, view.steps, view.times, view.values[places])
    values = np.full((len(places), row.rows), block.ABSENT, np.float32)
    where = {place: index for index, place in enumerate(places)}
    with store.reading() as connection:
        for column in stored(connection, of, places, row.first_step, row.first_step):
            values[where[column.place]] = column.values(row.rows)
    return block.View(schema, unpack_whole(row.steps, row.rows), unpack_whole(row.times, row.rows), values)


def _behind(view: block.View, after: int) -> block.View:
    """Returns the rows after a step; nearly always all of them."""
    begin = int(np.searchsorted(view.steps, after, "right"))
    return view.rows(begin, len(view)) if begin else view
