"""Queries behind curves and tensors: the rows of a run's streams, out of its segments and the blocks behind them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby, takewhile
from typing import Any, NamedTuple

import msgspec
import numpy as np
from sqlalchemy import ColumnElement, Connection, Row, Select, Table, case, select

from ammeter import block, wire
from ammeter.block import Floats
from ammeter.merging import Life
from ammeter_server.bulk import chunks, columns, day_of, events, segments
from ammeter_server.columns import TOGETHER, Told, read_head, unpack, unpack_whole
from ammeter_server.store.engine import Store
from ammeter_server.tables import schemas, streams

AT_ONCE = 128
"""Chunks read in one transaction, so that a long run's curve never holds a reader's snapshot for long."""

SEGMENTS_AT_ONCE = 8
PARTS_AT_ONCE = 500
"""Rows of columns asked for by number in one statement."""


class Source(NamedTuple):
    """A stream that holds steps."""

    id: str
    rank: int


class Wanted(NamedTuple):
    """Which columns: scalars, and stats of all tensors."""

    scalars: tuple[str, ...] = ()
    stats: tuple[str, ...] = ()


class Known(NamedTuple):
    """What is known of a stream before its rows are read: schemas by id, and the days its rows came on."""

    run: str
    stream: str
    schemas: Mapping[str, wire.Schema]
    first_day: int
    last_day: int

    def rows_of(self, table: Table) -> tuple[ColumnElement[bool], ...]:
        """Where the stream's rows are. The days spare PostgreSQL the partitions that cannot hold any."""
        day = table.c.day.between(self.first_day, self.last_day)
        return table.c.run == self.run, table.c.stream == self.stream, day


def sources(connection: Connection, run: str, rank: int | None, stream: str | None) -> list[Source]:
    """The run's streams that hold steps: by rank, and of a rank its lives in order."""
    query = select(streams.c.id, streams.c.rank).where(streams.c.run == run, streams.c.role == "rank")
    if rank is not None:
        query = query.where(streams.c.rank == rank)
    if stream is not None:
        query = query.where(streams.c.id == stream)
    return [Source(*row) for row in connection.execute(query.order_by(streams.c.rank, streams.c.started, streams.c.id))]


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
    return Known(run, stream, bodies, day_of(opened) - 1, day_of(heard) + 1)  # collectors' clocks differ a little


@lru_cache(64)
def _schema(body: bytes) -> wire.Schema:
    found: wire.Schema = msgspec.msgpack.decode(body, type=wire.Schema)
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
            found = _of_segments(connection, of, after, last, wanted)
            found = found or _of_chunks(connection, of, after, last, wanted)
        if not found:
            return
        yield from found
        after = int(found[-1].steps[-1])


def latest_views(store: Store, run: str, stream: str, limit: int, wanted: Wanted | None = None) -> Iterator[block.View]:
    """The stream's rows, the newest first: of its last blocks, so many, then segment by segment."""
    with store.reading() as connection:
        of = known(connection, run, stream)
        query = select(chunks).where(*of.rows_of(chunks)).order_by(chunks.c.first_step.desc()).limit(limit)
        blocks = connection.execute(query).all()
        places = list(segments_of(connection, of, -1, None))
    covered = places[-1].last_step if places else -1
    blocks = [row for row in blocks if row.schema in of.schemas]
    yield from (_unpacked(row, of, covered, wanted) for row in blocks if row.last_step > covered)
    for segment in reversed(places):
        with store.reading() as connection:
            yield _view(connection, of, segment, wanted)


def segments_of(
    connection: Connection, of: Known, after: int, last: int | None, limit: int | None = None
) -> Sequence[Row[Any]]:
    """The stream's segments with steps behind `after`, in order: where they are, and in which schema."""
    wanted = (segments.c.first_step, segments.c.last_step, segments.c.rows, segments.c.schema, segments.c.day)
    query: Select[Any] = select(*wanted).where(*of.rows_of(segments), segments.c.last_step > after)
    if last is not None:
        query = query.where(segments.c.first_step <= last)
    return connection.execute(query.order_by(segments.c.first_step).limit(limit)).all()


def stamps_of(connection: Connection, of: Known, first: int, last: int) -> dict[int, tuple[bytes, bytes]]:
    """First step -> steps and times, packed, of the segments that begin between these steps."""
    query = select(segments.c.first_step, segments.c.steps, segments.c.times).where(*of.rows_of(segments))
    query = query.where(segments.c.first_step.between(first, last))
    return {row.first_step: (bytes(row.steps), bytes(row.times)) for row in connection.execute(query)}


class Stored(NamedTuple):
    """One column of one segment. data: its values, where they were asked for or are few."""

    place: int
    first_step: int
    told: Told
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
    for begin in range(0, len(parts), PARTS_AT_ONCE):
        rows = connection.execute(query.where(columns.c.part.in_(parts[begin : begin + PARTS_AT_ONCE])))
        for part, group in groupby(rows, key=lambda row: row.part):
            heads = [(row, read_head(bytes(row.head), wanted[part])) for row in group]
            for which in wanted[part]:
                yield from (_stored(part, which, row, head[which]) for row, head in heads if which in head)


def _stored(part: int, which: int, row: Row[Any], told: Told) -> Stored:
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


@lru_cache(256)
def _reduced(schema: wire.Schema, wanted: Wanted | None) -> tuple[wire.Schema, tuple[int, ...]]:
    """The schema with the wanted columns only, and where they stand in the whole one."""
    if wanted is None:
        return schema, tuple(range(schema.width))
    scalars = tuple(name for name in wanted.scalars if name in schema.scalars)
    stats = tuple(name for name in wanted.stats if name in schema.stats)
    spans = (schema.span(name) for name in stats)
    places = [schema.scalars.index(name) for name in scalars]
    places += [place for span in spans for place in range(span.start, span.stop)]
    return wire.Schema(scalars, stats, schema.tensors), tuple(places)


def _of_segments(
    connection: Connection, of: Known, after: int, last: int | None, wanted: Wanted | None
) -> list[block.View]:
    found = takewhile(
        lambda each: each.schema in of.schemas, segments_of(connection, of, after, last, SEGMENTS_AT_ONCE)
    )
    return [_behind(_view(connection, of, each, wanted), after) for each in found]


def _view(connection: Connection, of: Known, segment: Row[Any], wanted: Wanted | None) -> block.View:
    schema, places = _reduced(of.schemas[segment.schema], wanted)
    values = np.full((len(places), segment.rows), block.ABSENT, np.float32)
    where = {place: index for index, place in enumerate(places)}
    begin = segment.first_step
    for each in stored(connection, of, places, begin, begin):
        values[where[each.place]] = each.values(segment.rows)
    steps, times = stamps_of(connection, of, begin, begin)[begin]
    return block.View(schema, unpack_whole(steps, segment.rows), unpack_whole(times, segment.rows), values)


def _of_chunks(
    connection: Connection, of: Known, after: int, last: int | None, wanted: Wanted | None
) -> list[block.View]:
    query = select(chunks).where(*of.rows_of(chunks), chunks.c.last_step > after)
    if last is not None:
        query = query.where(chunks.c.first_step <= last)
    rows = connection.execute(query.order_by(chunks.c.first_step).limit(AT_ONCE)).all()
    # a keeper may have made a segment of them, and taken some away, since nobody found one
    again = _of_segments(connection, of, after, last, wanted)
    there = takewhile(lambda row: row.schema in of.schemas, rows)  # others came since, with columns of their own
    return again or [_unpacked(row, of, after, wanted) for row in there]


def _unpacked(row: Row[Any], of: Known, after: int, wanted: Wanted | None) -> block.View:
    packed = wire.Block(row.schema, row.rows, row.columns, row.first_step, row.last_step, row.data)
    view = block.unpack(packed, of.schemas[row.schema])
    if wanted is not None:
        schema, places = _reduced(view.schema, wanted)
        view = block.View(schema, view.steps, view.times, view.values[list(places)])
    return _behind(view, after)


def _behind(view: block.View, after: int) -> block.View:
    """Its rows behind a step; all of them mostly."""
    begin = int(np.searchsorted(view.steps, after, "right"))
    return view.rows(begin, len(view)) if begin else view
