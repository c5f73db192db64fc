"""Single columns of segments, read without the other columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from sqlalchemy import BindParameter, ColumnElement, Connection, Row, Select, bindparam, case, or_, select

from ammeter.wire.columns import Floats
from ammeter_server.db.column_codec import COLUMNS_PER_PART, ColumnHeader, read_head, unpack
from ammeter_server.db.prepared import PreparedList
from ammeter_server.db.queries.steps.stream_info import StreamInfo, stream_rows
from ammeter_server.db.step_tables import SUMMARY_PART, columns

PARTS_PER_QUERY = 512
"""Rows of `columns` per statement in queries by part."""


def _stored(parts: Sequence[BindParameter[int]], data: ColumnElement[Any] = columns.c.data) -> Select[Any]:
    """Selects parts of a stream."""
    query: Select[Any] = select(columns.c.part, columns.c.first_step, columns.c.head, data.label("data"))
    query = query.where(*stream_rows(columns), columns.c.part.in_(parts))
    query = query.where(columns.c.first_step.between(bindparam("of_first"), bindparam("of_last")))
    return query.order_by(columns.c.part, columns.c.first_step)


_is_end = or_(columns.c.first_step == bindparam("of_first"), columns.c.first_step == bindparam("of_last"))
_with_data = PreparedList(_stored)
_with_data_at_ends = PreparedList(lambda parts: _stored(parts, case((_is_end, columns.c.data))))


class StoredColumn(NamedTuple):
    """One column of one segment.

    Attributes:
        place: Its index in the segment's schema.
        header: Its header.
        data: Its packed values; None if they were not requested and the column is not short.
    """

    place: int
    first_step: int
    header: ColumnHeader
    data: bytes | None

    def values(self, rows: int) -> Floats:
        assert self.data is not None
        return unpack(self.data, rows)


def stored_columns(
    connection: Connection,
    info: StreamInfo,
    places: Iterable[int],
    first: int,
    last: int,
    with_data_at_ends: bool = False,
) -> Iterator[StoredColumn]:
    """Yields these columns, one after the other, in the segments that begin between these steps.

    with_data_at_ends: reads the values only of the segments that begin at `first` and `last`.
    """
    wanted: dict[int, list[int]] = {}
    for place in sorted(places):
        wanted.setdefault(place // COLUMNS_PER_PART, []).append(place % COLUMNS_PER_PART)
    query = _with_data_at_ends if with_data_at_ends else _with_data
    values = info.parameters | {"of_first": first, "of_last": last}
    parts = list(wanted)
    for begin in range(0, len(parts), PARTS_PER_QUERY):
        rows = query.named(connection, parts[begin : begin + PARTS_PER_QUERY], values)
        for part, group in groupby(rows, key=lambda row: row.part):
            heads = [(row, read_head(bytes(row.head), wanted[part])) for row in group]
            for index in wanted[part]:
                yield from (_stored_column(part, index, row, head[index]) for row, head in heads if index in head)


def stored_summaries(connection: Connection, info: StreamInfo, stat: int, first: int, last: int) -> dict[int, bytes]:
    """Returns first step -> packed summary of a stat, for the segments that begin between these steps and have one.

    stat: the index of the stat in the schema of these segments.
    """
    query = select(columns.c.first_step, columns.c.head).where(*info.rows_of(columns))
    query = query.where(columns.c.part == SUMMARY_PART + stat, columns.c.first_step.between(first, last))
    return {first_step: bytes(head) for first_step, head in connection.execute(query)}


def _stored_column(part: int, index: int, row: Row[Any], header: ColumnHeader) -> StoredColumn:
    data = header.few or (None if row.data is None else row.data[header.data])
    return StoredColumn(part * COLUMNS_PER_PART + index, row.first_step, header, data)
