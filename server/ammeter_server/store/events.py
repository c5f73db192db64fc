"""Query behind the list of a run's events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, select, tuple_

from ammeter_server.bulk import events
from ammeter_server.tables import streams


def newest(
    connection: Connection,
    run: str,
    limit: int,
    before: tuple[Any, ...] | None,
    names: Sequence[str] = (),
    rank: int | None = None,
    stream: str | None = None,
    first: int | None = None,
    last: int | None = None,
) -> Sequence[Row[Any]]:
    """Events with their rank, from the newest on. before: (time, stream, number) of the last one already seen."""
    here = (events.c.run == streams.c.run) & (events.c.stream == streams.c.id)
    key = (events.c.time, events.c.stream, events.c.number)
    query = select(events, streams.c.rank).join(streams, here).where(events.c.run == run)
    if before is not None:
        query = query.where(tuple_(*key) < tuple_(*before))
    if names:
        query = query.where(events.c.name.in_(names))
    if rank is not None:
        query = query.where(streams.c.rank == rank)
    if stream is not None:
        query = query.where(events.c.stream == stream)
    if first is not None:
        query = query.where(events.c.step >= first)
    if last is not None:
        query = query.where(events.c.step <= last)
    return connection.execute(query.order_by(*(column.desc() for column in key)).limit(limit)).all()
