"""The tables of data that comes with every step, partitioned by day.

Separate from tables.py because each row has its day (UTC, of receipt) in its key, PostgreSQL has a partition for each
day, and no table refers to them. Steps are stored in `chunks` as they arrive, then in `segments` and `columns`; see
column_codec.py and maintenance/compaction.py.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, Table

from ammeter_server.db.column_types import document, integer, key, text
from ammeter_server.db.tables import metadata

DAY_NS = 86_400 * 10**9

SUMMARY_PART = 2**32
"""The part of the summary of a schema's first stat, above all parts of columns; those of the next stats follow."""

BY_DAY: dict[str, Any] = {"postgresql_partition_by": "RANGE (day)"}


def day_of(time: int) -> int:
    """Returns the UTC day of a time in ns, counted from 1970."""
    return time // DAY_NS


def key_integer(name: str) -> Column[int]:
    return Column(name, BigInteger, primary_key=True, autoincrement=False)


chunks = Table(
    "chunks",
    metadata,
    key("run"),
    key("stream"),
    key_integer("first_step"),
    key_integer("day"),
    integer("last_step"),
    integer("first_time"),
    integer("last_time"),
    Column("rows", Integer, nullable=False),
    Column("columns", Integer, nullable=False),
    text("schema", None),
    integer("received"),
    Column("data", LargeBinary, nullable=False),
    Index("ix_chunks_day", "day"),
    **BY_DAY,
)
"""Rows of a stream as columns, packed as received or joined; ammeter.wire.columns.unpack reads them. Chunks whose steps
a segment covers are ignored and will be deleted."""

segments = Table(
    "segments",
    metadata,
    key("run"),
    key("stream"),
    key_integer("first_step"),
    key_integer("day"),
    integer("last_step"),
    Column("rows", Integer, nullable=False),
    Column("parts", Integer, nullable=False),
    text("schema", None),
    Column("steps", LargeBinary, nullable=False),
    Column("times", LargeBinary, nullable=False),
    Index("ix_segments_day", "day"),
    **BY_DAY,
)
"""A range of steps whose values are in `columns`; segments cover a stream from its beginning. parts: its number of rows
in `columns`."""

columns = Table(
    "columns",
    metadata,
    key("run"),
    key("stream"),
    key_integer("part"),
    key_integer("first_step"),
    key_integer("day"),
    Column("head", LargeBinary, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Index("ix_columns_day", "day"),
    **BY_DAY,
)
"""Eight neighbouring columns of one segment, with the same first_step and day. part: the index of this group in the
segment's schema. head: ammeter_server.db.column_codec.read_head reads it.

Parts from SUMMARY_PART on are summaries of one stat of all tensors, which
ammeter_server.curves.stat_summary.unpack_summary reads from head. Segments of older collectors have none.
"""

events = Table(
    "events",
    metadata,
    key("run"),
    key("stream"),
    key_integer("number"),
    key_integer("day"),
    text("name"),
    integer("step"),
    integer("time"),
    document("data"),
    Index("ix_events_run_time", "run", "time", "stream", "number"),
    Index("ix_events_day", "day"),
    **BY_DAY,
)
"""The events of a stream, numbered in the order of its journal."""

PARTITIONED_TABLES = (chunks, segments, columns, events)
