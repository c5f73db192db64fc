"""Queries behind curves and tensors: the rows of a run's streams, out of its segments and the blocks behind them."""

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
"""Chunks read in one transaction, so that a long run's curve never holds a reader's snapshot for long."""

MAX_LATE_EVENTS = 20_000
"""Events that a curve looks through for what was logged late: a chart's patience, some 20 ms."""

SEGMENTS_PER_READ = 8
PARTS_PER_QUERY = 500
"""Rows of columns asked for by number in one statement."""


class Source(NamedTuple):
    """A stream that holds steps. rows: how many of them have come. schema: that of the last ones."""

    id: str
    rank: int
    started: int = 0
    rows: int = 0
    schema: str | None = None
    last_step: int | None = None


class Wanted(NamedTuple):
    """Which columns: scalars, and stats of all tensors."""

    scalars: tuple[str, ...] = ()
    stats: tuple[str, ...] = ()


Reduced = tuple[frames.Schema, Sequence[int]]
"""A schema with some of the columns, and where they stand in the whole one."""


class Known(NamedTuple):
    """What is known of a stream before its rows are read: schemas by id, and from which day on its rows came."""

    run: str
    stream: str
    schemas: Mapping[str, frames.Schema]
    first_day: int
    reduced: dict[tuple[str, Wanted | None], Reduced]

    def rows_of(self, table: Table) -> tuple[ColumnElement[bool], ...]:
        """Where the stream's rows are. The day spares PostgreSQL the partitions from before it began."""
        return table.c.run == self.run, table.c.stream == self.stream, table.c.day >= self.first_day


def sources(
    connection: Connection, run: str, ranks: Sequence[int] | None = None, stream: str | None = None
) -> list[Source]:
    """The run's streams that hold steps: by rank, and of a rank its lives in order."""
    whole = (streams.c.id, streams.c.rank, streams.c.started, streams.c.rows, streams.c.schema, streams.c.last_step)
    query = select(*whole).where(streams.c.run == run, streams.c.role == "rank")
    if ranks is not None:
        query = query.where(streams.c.rank.in_(ranks))
    if stream is not None:
        query = query.where(streams.c.id == stream)
    return [Source(*row) for row in connection.execute(query.order_by(streams.c.rank, streams.c.started, streams.c.id))]


def standing(connection: Connection, run: str, of: Sequence[Source]) -> list[tuple[Any, ...]]:
    """What changes with each of their rows and events that comes, and with those that are deleted, the first ones."""
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
    """The run's streams that hold steps, as what is needed to tell which of them ran together."""
    whole = (streams.c.id, streams.c.rank, streams.c.world_size, streams.c.started)
    end = (streams.c.last_step_time, streams.c.bye, streams.c.bye_reason)
    query = select(*whole, *end).where(streams.c.run == run, streams.c.role == "rank", streams.c.schema.is_not(None))
    return [Life(*row[:4], _ended(row.started, *row[4:])) for row in connection.execute(query)]


def _ended(started: int, last_step_time: int | None, bye: Mapping[str, Any], reason: str | None) -> int | None:
    """When the process was over; of one that died, which is noted later, when it was heard last."""
    if reason is None:
        return None
    return last_step_time or started if reason == "lost" else int(bye["time"])


def known(connection: Connection, run: str, stream: str) -> Known:
    """Before the stream's rows are read. A stream that is not there has none."""
    query = select(schemas.c.id, schemas.c.body).where(schemas.c.run == run, schemas.c.stream == stream)
    bodies = {name: _schema(bytes(body)) for name, body in connection.execute(query)}
    span = select(streams.c.opened, streams.c.heard).where(streams.c.run == run, streams.c.id == stream)
    opened, heard = connection.execute(span).one_or_none() or (0, 0)
    right = opened <= heard  # else the clock was put back since, and nobody knows on which days rows came
    return Known(run, stream, bodies, day_of(opened) - 1 if right else 0, {})  # collectors' clocks differ a little


@lru_cache(8)
def _schema(body: bytes) -> frames.Schema:
    found: frames.Schema = msgspec.msgpack.decode(body, type=frames.Schema)
    return found


def views(
    store: Store, run: str, stream: str, first: int | None, last: int | None, wanted: Wanted | None = None
) -> Iterator[block.View]:
    """The stream's rows from the first step on, in order, up to the view that holds the last.

    With `wanted` the views' schema has those columns only, else all, which takes long where they are many.
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
    """The stream's rows, the newest first: of its last blocks, so many, and of its last segments."""
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
    """The stream's segments with steps behind `after`, in order."""
    query = select(segments).where(*of.rows_of(segments), segments.c.last_step > after)
    if last is not None:
        query = query.where(segments.c.first_step <= last)
    rows = connection.execute(query.order_by(segments.c.first_step).limit(limit)).all()
    return list(takewhile(lambda row: row.schema in of.schemas, rows))  # others came since, with columns of their own


class Stored(NamedTuple):
    """One column of one segment. data: its values, where they were asked for or are few."""

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
    """These columns, one after the other, in the segments that begin between these steps. with_data: first steps of
    those whose values are asked for; None for all."""
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
    """(number, name, step, data) of the stream's events of these names, in order, from a number on."""
    query = select(events.c.number, events.c.name, events.c.step, events.c.data)
    query = query.where(events.c.run == run, events.c.stream == stream, events.c.number >= first)
    query = query.where(events.c.name.in_(names)).order_by(events.c.number)
    return [(row.number, row.name, row.step, row.data) for row in connection.execute(query)]


def logged(connection: Connection, run: str, stream: str, first: int, last: int | None) -> list[Row[Any]]:
    """(step, time, data) of what run.log said of steps between these whose rows had been written: of the stream's
    newest MAX_LATE_EVENTS events."""
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
    """The schema of that name with the wanted columns only."""
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
    """Some segments behind a step, or blocks where there is none."""
    found = segments_of(connection, of, after, last, SEGMENTS_PER_READ)
    if found:
        return found
    query = select(chunks).where(*of.rows_of(chunks), chunks.c.last_step > after)
    if last is not None:
        query = query.where(chunks.c.first_step <= last)
    rows = connection.execute(query.order_by(chunks.c.first_step).limit(CHUNKS_PER_READ)).all()
    # a keeper may have made a segment of them, and taken some away, since none was found
    again = segments_of(connection, of, after, last, SEGMENTS_PER_READ)
    return again or list(takewhile(lambda row: row.schema in of.schemas, rows))


def _view(store: Store, of: Known, row: Row[Any], wanted: Wanted | None) -> block.View:
    """The rows of a segment or a block."""
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
    """Its rows behind a step; all of them mostly."""
    begin = int(np.searchsorted(view.steps, after, "right"))
    return view.rows(begin, len(view)) if begin else view
