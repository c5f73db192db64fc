"""Queries behind the list of a run's events, and behind what is told of one kind of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, Select, select, tuple_

from ammeter_server.db.queries.paging import page
from ammeter_server.db.step_tables import events
from ammeter_server.db.tables import streams


class Span(NamedTuple):
    """From which step to which, and from when to when in ns."""

    first: int | None = None
    last: int | None = None
    since: int | None = None
    until: int | None = None

    def of_events(self) -> list[ColumnElement[bool]]:
        """What it says of an event."""
        asked = (
            (events.c.step.__ge__, self.first),
            (events.c.step.__le__, self.last),
            (events.c.time.__ge__, self.since),
            (events.c.time.__le__, self.until),
        )
        return [holds(value) for holds, value in asked if value is not None]


def newest(
    connection: Connection,
    run: str,
    size: int,
    before: tuple[Any, ...] | None,
    names: Sequence[str] = (),
    ranks: Sequence[int] | None = None,
    stream: str | None = None,
    span: Span = Span(),  # noqa: B008 - it is a tuple
) -> tuple[Sequence[Row[Any]], bool]:
    """A page of events with their rank, from the newest on, and whether there are more.

    before: (time, stream, number) of the last one already seen.

    names: as a whole, or ending in `.*` for all that begin with what stands before it.
    """
    here = (events.c.run == streams.c.run) & (events.c.stream == streams.c.id)
    key = (events.c.time, events.c.stream, events.c.number)
    query = select(events, streams.c.rank).join(streams, here).where(events.c.run == run, *span.of_events())
    if before is not None:
        query = query.where(tuple_(*key) < tuple_(*before))
    if names:
        query = query.where(_named(names))
    if ranks is not None:
        query = query.where(streams.c.rank.in_(ranks))
    if stream is not None:
        query = query.where(events.c.stream == stream)
    return page(connection, query.order_by(*(column.desc() for column in key)), size, events.c.data)


def named(
    connection: Connection, run: str, stream: str, name: str, after: int, span: Span, limit: int
) -> Sequence[Row[Any]]:
    """The stream's events of that name behind a number, in order."""
    whole = (events.c.number, events.c.step, events.c.time, events.c.data)
    query: Select[Any] = select(*whole).where(events.c.run == run, events.c.stream == stream)
    query = query.where(events.c.number > after, events.c.name == name, *span.of_events()).order_by(events.c.number)
    return connection.execute(query.limit(limit)).all()


def _named(names: Sequence[str]) -> ColumnElement[bool]:
    whole = [name for name in names if not name.endswith(".*")]
    found: ColumnElement[bool] = events.c.name.in_(whole)
    for begin in (name.removesuffix("*") for name in names if name not in whole):
        found |= events.c.name.startswith(begin, autoescape=True)
    return found
