"""Queries of the live updates: whether a run changed, and the progress of its streams."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select

from ammeter_server.db.step_tables import events
from ammeter_server.db.tables import incidents, runs, streams


def versions(connection: Connection, of: Collection[str]) -> dict[str, tuple[Any, ...]]:
    """Returns run -> a value that changes with each batch and each other change.

    Sums the lower 40 bits of offsets: SQLite fails for a sum beyond 2^63, and the offsets of one run must not stop the
    live updates of all others.
    """
    counted = (
        *(func.count(), func.sum(streams.c.acknowledged % 2**40), func.sum(streams.c.version)),
        func.max(streams.c.completed_time),
        func.count(streams.c.postponed_from),
    )
    handled = func.count(), *map(func.max, (incidents.c.opened, incidents.c.acknowledged, incidents.c.closed))
    queries = (
        select(runs.c.id, runs.c.state, runs.c.judged_version).where(runs.c.id.in_(of)),
        select(streams.c.run, *counted).where(streams.c.run.in_(of)).group_by(streams.c.run),
        select(incidents.c.run, *handled, func.max(incidents.c.last_step))
        .where(incidents.c.run.in_(of))
        .group_by(incidents.c.run),
    )
    states: dict[str, tuple[Any, ...]] = {}
    for query in queries:
        for run, *state in connection.execute(query):
            states[run] = (*states.get(run, ()), *state)
    return states


def newest_streams(connection: Connection, run: str, ranks: Sequence[int] | None, limit: int) -> Sequence[Row[Any]]:
    """Returns the newest streams of these ranks, oldest first, with their progress.

    Without ranks, the streams of the lowest rank. Progress is the number of events and the last step.
    """
    if ranks is None:
        lowest = select(func.min(streams.c.rank)).where(streams.c.run == run, streams.c.role == "rank")
        wanted = streams.c.rank == lowest.scalar_subquery()
    else:
        wanted = streams.c.rank.in_(ranks)
    query: Select[Any] = select(streams.c.id, streams.c.rank, streams.c.events, streams.c.last_step)
    newest = query.where(streams.c.run == run, wanted).order_by(streams.c.started.desc(), streams.c.id).limit(limit)
    states: Sequence[Row[Any]] = connection.execute(newest).all()
    return states[::-1]


def events_between(
    connection: Connection, run: str, stream: str, first: int, end: int, limit: int
) -> Sequence[Row[Any]]:
    """Returns the stream's events with numbers from `first` to before `end`, in order."""
    query = select(events).where(events.c.run == run, events.c.stream == stream)
    query = query.where(events.c.number >= first, events.c.number < end).order_by(events.c.number)
    return connection.execute(query.limit(limit)).all()
