"""Converts a period of time to a range of a stream's steps.

Assumes that times rise with steps, which is untrue only if a clock was set back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row, select

from ammeter.wire import columns, frames
from ammeter.wire.columns import Ints
from ammeter_server.db.engine import Store
from ammeter_server.db.integer_codec import unpack_integers
from ammeter_server.db.queries.steps.rows import segments_of
from ammeter_server.db.queries.steps.stream_info import StreamInfo, stream_info
from ammeter_server.db.step_tables import chunks

MAX_STEP = 2**63 - 1


def steps_between(store: Store, run: str, stream: str, since: int | None, until: int | None) -> tuple[int, int]:
    """Returns (first, last) step that closed between `since` and `until`, in ns.

    first > last if there is none.
    """
    with store.reading() as connection:
        info = stream_info(connection, run, stream)
        spans: list[Row[Any]] = list(segments_of(connection, info, -1, None))
        spans += _blocks(connection, info, spans[-1].last_step if spans else -1)
        first, last = 0, MAX_STEP
        if since is not None:
            place = bisect_left(spans, since, key=_end)
            first = _step_at(connection, info, spans[place], since, "left") if place < len(spans) else MAX_STEP
        if until is not None:
            place = bisect_right(spans, until, key=_begin) - 1
            last = _step_at(connection, info, spans[place], until, "right") if place >= 0 else -1
    return first, last


def _blocks(connection: Connection, info: StreamInfo, after: int) -> list[Row[Any]]:
    """Returns the blocks after a step, which no segment covers, without their data."""
    block_columns = (chunks.c.first_step, chunks.c.last_step, chunks.c.first_time, chunks.c.last_time, chunks.c.schema)
    query = select(*block_columns, chunks.c.rows, chunks.c.columns).where(
        *info.rows_of(chunks), chunks.c.last_step > after
    )
    rows: Iterable[Row[Any]] = connection.execute(query.order_by(chunks.c.first_step))
    return [row for row in rows if row.schema in info.schemas]


def _begin(row: Row[Any]) -> int:
    return int(row.first_time) if "first_time" in row._fields else _at(row, 0)


def _end(row: Row[Any]) -> int:
    return int(row.last_time) if "last_time" in row._fields else _at(row, row.rows - 1)


def _at(segment: Row[Any], place: int) -> int:
    return int(unpack_integers(segment.times, segment.rows, np.array([place]))[0])


def _step_at(connection: Connection, info: StreamInfo, row: Row[Any], at: int, side: Any) -> int:
    """Returns a step of a segment or block by time.

    With side "left" the first step that closed at `at` or later, with "right" the last one by then. One of its rows has
    to qualify.
    """
    steps, times = _stamps(connection, info, row)
    return int(steps[np.searchsorted(times, at, side) - (side == "right")])


def _stamps(connection: Connection, info: StreamInfo, row: Row[Any]) -> tuple[Ints, Ints]:
    if "first_time" not in row._fields:
        return unpack_integers(row.steps, row.rows), unpack_integers(row.times, row.rows)
    query = select(chunks.c.data).where(*info.rows_of(chunks), chunks.c.first_step == row.first_step)
    data = connection.execute(query).scalar_one()
    packed = frames.Block(row.schema, row.rows, row.columns, row.first_step, row.last_step, data)
    view = columns.unpack(packed, info.schemas[row.schema])
    return view.steps, view.times
