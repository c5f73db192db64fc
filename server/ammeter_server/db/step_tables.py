"""The tables of what comes with every step. Apart from tables.py because they go by day: each row has the day (UTC, of
receipt) in its key, PostgreSQL has a partition for each, and nothing refers to them.

Steps lie in `chunks` as they came, then in `segments` and `columns`; see columns.py and keeper.py.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, Table

from ammeter_server.db.tables import document, key, metadata, text, whole

DAY = 86_400 * 10**9

BY_DAY: dict[str, Any] = {"postgresql_partition_by": "RANGE (day)"}


def day_of(time: int) -> int:
    """The UTC day of a time in ns, counted from 1970."""
    return time // DAY


def part(name: str) -> Column[int]:
    return Column(name, BigInteger, primary_key=True, autoincrement=False)


chunks = Table(
    "chunks",
    metadata,
    key("run"),
    key("stream"),
    part("first_step"),
    part("day"),
    whole("last_step"),
    whole("first_time"),
    whole("last_time"),
    Column("rows", Integer, nullable=False),
    Column("columns", Integer, nullable=False),
    text("schema", None),
    whole("received"),
    Column("data", LargeBinary, nullable=False),
    Index("ix_chunks_day", "day"),
    **BY_DAY,
)
"""Rows of a stream as columns, packed as they came or joined; ammeter.wire.columns.unpack reads them. Those that a
segment holds are on their way out and do not count."""

segments = Table(
    "segments",
    metadata,
    key("run"),
    key("stream"),
    part("first_step"),
    part("day"),
    whole("last_step"),
    Column("rows", Integer, nullable=False),
    Column("parts", Integer, nullable=False),
    text("schema", None),
    Column("steps", LargeBinary, nullable=False),
    Column("times", LargeBinary, nullable=False),
    Index("ix_segments_day", "day"),
    **BY_DAY,
)
"""A stretch of a stream, from its beginning on, that lies in `columns`. parts: how many rows that is."""

columns = Table(
    "columns",
    metadata,
    key("run"),
    key("stream"),
    part("part"),
    part("first_step"),
    part("day"),
    Column("head", LargeBinary, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Index("ix_columns_day", "day"),
    **BY_DAY,
)
"""Eight neighbouring columns of one segment, which has the same first_step and day. part: which eight of the segment's
schema. head: what ammeter_server.db.column_codec.read_head tells of each."""

events = Table(
    "events",
    metadata,
    key("run"),
    key("stream"),
    part("number"),
    part("day"),
    text("name"),
    whole("step"),
    whole("time"),
    document("data"),
    Index("ix_events_run_time", "run", "time", "stream", "number"),
    Index("ix_events_day", "day"),
    **BY_DAY,
)
"""What happened, numbered per stream in the order of the journal."""

PARTITIONED_TABLES = (chunks, segments, columns, events)
