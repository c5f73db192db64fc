"""Facts about a stream that reads of its rows need: its schemas and its first day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Table, bindparam, select

from ammeter.wire import frames
from ammeter_server.db.prepared import Prepared
from ammeter_server.db.step_tables import day_of
from ammeter_server.db.tables import schemas, streams

_of_stream = (schemas.c.run == streams.c.run) & (schemas.c.stream == streams.c.id)
_stream = Prepared(
    select(streams.c.opened, streams.c.last_seen, schemas.c.id, schemas.c.body)
    .outerjoin(schemas, _of_stream)
    .where(streams.c.run == bindparam("of_run"), streams.c.id == bindparam("of_stream"))
)
"""Built once, as all statements that a curve needs: building one takes as long as the database takes to answer it."""


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

    @property
    def parameters(self) -> dict[str, Any]:
        """The values of stream_rows()."""
        return {"of_run": self.run, "of_stream": self.stream, "of_day": self.first_day}

    def rows_of(self, table: Table) -> tuple[ColumnElement[bool], ...]:
        """Returns the conditions for the stream's rows.

        The day excludes PostgreSQL's partitions from before the stream began.
        """
        return table.c.run == self.run, table.c.stream == self.stream, table.c.day >= self.first_day


def stream_rows(table: Table) -> tuple[ColumnElement[bool], ...]:
    """Returns the same conditions as rows_of() for a statement that is built once."""
    return (
        table.c.run == bindparam("of_run"),
        table.c.stream == bindparam("of_stream"),
        table.c.day >= bindparam("of_day"),
    )


def stream_info(connection: Connection, run: str, stream: str) -> StreamInfo:
    """Reads the facts about a stream. An unknown stream has no schemas.

    To be called before its rows are read.
    """
    rows = _stream.all(connection, {"of_run": run, "of_stream": stream})
    bodies = {name: _schema(bytes(body)) for *_, name, body in rows if name is not None}
    opened, last_seen = rows[0][:2] if rows else (0, 0)
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
