"""Facts about a stream that reads of its rows need: its schemas and its first day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Table, select

from ammeter.wire import frames
from ammeter_server.db.step_tables import day_of
from ammeter_server.db.tables import schemas, streams


class ColumnSelection(NamedTuple):
    """A selection of columns: scalars, and stats of all tensors."""

    scalars: tuple[str, ...] = ()
    stats: tuple[str, ...] = ()


ReducedSchema = tuple[frames.Schema, Sequence[int]]
"""A schema with a selection of columns, and their positions in the complete schema."""


class StreamInfo(NamedTuple):
    """Facts about a stream that reads of its rows need.

    Attributes:
        schemas: id -> schema.
        first_day: Its rows have this day or a later one.
        reduced_schemas: Cache of reduced_schema().
    """

    run: str
    stream: str
    schemas: Mapping[str, frames.Schema]
    first_day: int
    reduced_schemas: dict[tuple[str, ColumnSelection | None], ReducedSchema]

    def rows_of(self, table: Table) -> tuple[ColumnElement[bool], ...]:
        """Returns the conditions for the stream's rows.

        The day excludes PostgreSQL's partitions from before the stream began.
        """
        return table.c.run == self.run, table.c.stream == self.stream, table.c.day >= self.first_day


def stream_info(connection: Connection, run: str, stream: str) -> StreamInfo:
    """Reads the facts about a stream. An unknown stream has no schemas.

    To be called before its rows are read.
    """
    query = select(schemas.c.id, schemas.c.body).where(schemas.c.run == run, schemas.c.stream == stream)
    bodies = {name: _schema(bytes(body)) for name, body in connection.execute(query)}
    span = select(streams.c.opened, streams.c.last_seen).where(streams.c.run == run, streams.c.id == stream)
    opened, last_seen = connection.execute(span).one_or_none() or (0, 0)
    plausible = opened <= last_seen  # else the clock was set back, and the days of the rows are unknown
    return StreamInfo(
        run, stream, bodies, day_of(opened) - 1 if plausible else 0, {}
    )  # collectors' clocks differ a little


@lru_cache(8)
def _schema(body: bytes) -> frames.Schema:
    schema: frames.Schema = msgspec.msgpack.decode(body, type=frames.Schema)
    return schema


def reduced_schema(info: StreamInfo, name: str, selection: ColumnSelection | None) -> ReducedSchema:
    """Returns the schema of that name with the selected columns only."""
    if (name, selection) not in info.reduced_schemas:
        info.reduced_schemas[name, selection] = _with(info.schemas[name], selection)
    return info.reduced_schemas[name, selection]


def _with(schema: frames.Schema, selection: ColumnSelection | None) -> ReducedSchema:
    if selection is None:
        return schema, range(schema.width)
    scalars = tuple(name for name in selection.scalars if name in schema.scalars)
    stats = tuple(name for name in selection.stats if name in schema.stats)
    spans = (schema.span(name) for name in stats)
    places = [schema.scalars.index(name) for name in scalars]
    places += [place for span in spans for place in range(span.start, span.stop)]
    return frames.Schema(scalars, stats, schema.tensors), places
