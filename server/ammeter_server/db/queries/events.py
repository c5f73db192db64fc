"""Queries on the events of a run and of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, Select, bindparam, select, tuple_

from ammeter_server.db.prepared import Prepared
from ammeter_server.db.queries.paging import page
from ammeter_server.db.step_tables import events
from ammeter_server.db.tables import streams

MAX_LATE_EVENTS = 20_000
"""Newest events of a stream that are searched for late values: about 20 ms, which a chart can afford."""

MAX_EARLY_EVENTS = 20_000
"""Oldest events of a stream that are searched for one that its first steps have: about 20 ms without it."""


MAX_STEP = 2**63 - 1

_count = Prepared(
    select(streams.c.events).where(streams.c.run == bindparam("of_run"), streams.c.id == bindparam("of_stream"))
)
_late_values = Prepared(
    select(events.c.step, events.c.time, events.c.data)
    .where(events.c.run == bindparam("of_run"), events.c.stream == bindparam("of_stream"))
    .where(events.c.number >= bindparam("of_number"), events.c.name == "values.logged")
    .where(events.c.step >= bindparam("of_first"), events.c.step <= bindparam("of_last"))
    .order_by(events.c.number)
)
"""Built once, because most curves need it."""


class Span(NamedTuple):
    """A range of steps and a range of times in ns, both ends included."""

    first: int | None = None
    last: int | None = None
    since: int | None = None
    until: int | None = None

    def of_events(self) -> list[ColumnElement[bool]]:
        """Returns the conditions for an event in these ranges."""
        limits = (
            (events.c.step.__ge__, self.first),
            (events.c.step.__le__, self.last),
            (events.c.time.__ge__, self.since),
            (events.c.time.__le__, self.until),
        )
        return [compare(value) for compare, value in limits if value is not None]


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
    same_stream = (events.c.run == streams.c.run) & (events.c.stream == streams.c.id)
    key = (events.c.time, events.c.stream, events.c.number)
    query = select(events, streams.c.rank).join(streams, same_stream).where(events.c.run == run, *span.of_events())
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
    columns = (events.c.number, events.c.step, events.c.time, events.c.data)
    query: Select[Any] = select(*columns).where(events.c.run == run, events.c.stream == stream)
    query = query.where(events.c.number > after, events.c.name == name, *span.of_events()).order_by(events.c.number)
    return connection.execute(query.limit(limit)).all()


def first_named(connection: Connection, run: str, stream: str, name: str) -> dict[str, Any] | None:
    """Returns the data of the stream's first event of that name, among its oldest MAX_EARLY_EVENTS."""
    query = select(events.c.data).where(events.c.run == run, events.c.stream == stream, events.c.name == name)
    query = query.where(events.c.number < MAX_EARLY_EVENTS).order_by(events.c.number).limit(1)
    found: dict[str, Any] | None = connection.execute(query).scalar()
    return found


def of_names(
    connection: Connection, run: str, stream: str, names: Sequence[str], first: int
) -> list[tuple[int, str, int, dict[str, Any]]]:
    """Returns (number, name, step, data) of events of these names from number `first` on."""
    query = select(events.c.number, events.c.name, events.c.step, events.c.data)
    query = query.where(events.c.run == run, events.c.stream == stream, events.c.number >= first)
    query = query.where(events.c.name.in_(names)).order_by(events.c.number)
    return [(row.number, row.name, row.step, row.data) for row in connection.execute(query)]


def late_values(connection: Connection, run: str, stream: str, first: int, last: int | None) -> list[Any]:
    """Returns (step, time, data) of late run.log values for steps between these.

    Late values belong to steps whose rows were already written. Searches the stream's newest MAX_LATE_EVENTS events.
    """
    of_stream = {"of_run": run, "of_stream": stream}
    row = _count.one(connection, of_stream)
    count = row[0] if row is not None else 0
    if not count:
        return []
    limits = {"of_number": count - MAX_LATE_EVENTS, "of_first": first, "of_last": MAX_STEP if last is None else last}
    return _late_values.named(connection, of_stream | limits)


def _named(names: Sequence[str]) -> ColumnElement[bool]:
    complete = [name for name in names if not name.endswith(".*")]
    matches: ColumnElement[bool] = events.c.name.in_(complete)
    for begin in (name.removesuffix("*") for name in names if name not in complete):
        matches |= events.c.name.startswith(begin, autoescape=True)
    return matches
