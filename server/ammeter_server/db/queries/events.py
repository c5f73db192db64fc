"""Queries on the events of a run and of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, Select, select, tuple_

from ammeter_server.db.queries.paging import page
from ammeter_server.db.step_tables import events
from ammeter_server.db.tables import streams


class Span(NamedTuple):
    """A range of steps and a range of times in ns, both ends included."""

    first: int | None = None
    last: int | None = None
    since: int | None = None
    until: int | None = None

    def of_events(self) -> list[ColumnElement[bool]]:
        """Returns the conditions for an event in these ranges."""
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
    """Returns a page of events with their rank, newest first, and whether there are more.

    before: (time, stream, number) of the previous page's last event.

    names: complete names, or prefixes that end in `.*`.
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
    """Returns the stream's events of that name with numbers above `after`, in order."""
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
