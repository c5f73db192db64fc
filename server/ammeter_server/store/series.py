"""Queries behind curves and tensors: the packed chunks of a run's streams, and what their columns are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Row, select

from ammeter import block, wire
from ammeter.merging import Life
from ammeter_server.store.engine import Store
from ammeter_server.tables import chunks, events, schemas, streams

AT_ONCE = 128
"""Chunks read in one transaction, so that a long run's curve never holds a reader's snapshot for long."""


class Source(NamedTuple):
    """A stream that holds steps."""

    id: str
    rank: int


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


def schemas_of(connection: Connection, run: str, stream: str) -> dict[str, wire.Schema]:
    """The stream's schemas by id."""
    query = select(schemas.c.id, schemas.c.body).where(schemas.c.run == run, schemas.c.stream == stream)
    return {name: msgspec.msgpack.decode(body, type=wire.Schema) for name, body in connection.execute(query)}


def views(store: Store, run: str, stream: str, first: int | None, last: int | None) -> Iterator[block.View]:
    """The stream's chunks that reach into these steps, unpacked, in order."""
    with store.reading() as connection:
        known = schemas_of(connection, run, stream)
    here = (chunks.c.run == run, chunks.c.stream == stream)
    query = select(chunks).where(*here).order_by(chunks.c.first_step).limit(AT_ONCE)
    if last is not None:
        query = query.where(chunks.c.first_step <= last)
    if first is not None:
        query = query.where(chunks.c.last_step >= first)
    after = -1
    while True:
        with store.reading() as connection:
            rows = connection.execute(query.where(chunks.c.first_step > after)).all()
        yield from (_unpacked(row, known[row.schema]) for row in rows)
        if len(rows) < AT_ONCE:
            return
        after = rows[-1].first_step


def said(
    connection: Connection, run: str, stream: str, names: Sequence[str], first: int
) -> list[tuple[int, str, int, dict[str, Any]]]:
    """(number, name, step, data) of the stream's events of these names, in order, from a number on."""
    query = select(events.c.number, events.c.name, events.c.step, events.c.data)
    query = query.where(events.c.run == run, events.c.stream == stream, events.c.number >= first)
    query = query.where(events.c.name.in_(names)).order_by(events.c.number)
    return [(row.number, row.name, row.step, row.data) for row in connection.execute(query)]


def latest_views(store: Store, run: str, stream: str, limit: int) -> Iterator[block.View]:
    """The stream's last chunks, unpacked, the newest first."""
    here = (chunks.c.run == run, chunks.c.stream == stream)
    query = select(chunks).where(*here).order_by(chunks.c.first_step.desc()).limit(limit)
    with store.reading() as connection:
        known = schemas_of(connection, run, stream)
        rows = connection.execute(query).all()
    yield from (_unpacked(row, known[row.schema]) for row in rows)


def _unpacked(row: Row[Any], schema: wire.Schema) -> block.View:
    packed = wire.Block(row.schema, row.rows, row.columns, row.first_step, row.last_step, row.data)
    return block.unpack(packed, schema)
