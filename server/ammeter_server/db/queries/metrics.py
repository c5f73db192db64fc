"""Queries of /metrics: live and recently ended runs, their incidents, and fleet totals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Text,
    func,
    or_,
    select,
    text,
    type_coerce,
)

from ammeter_server.db.queries.runs import STREAM_MARK, seen
from ammeter_server.db.tables import incidents, runs, streams, totals

Rows = Sequence[Row[Any]]
Mark = tuple[tuple[Any, ...], ...]

RUN_COLUMNS = (
    runs.c.id,
    runs.c.name,
    runs.c.project,
    runs.c.state,
    runs.c.tags,
    runs.c.environment,
    runs.c.world_size,
    runs.c.started,
    runs.c.ended,
    runs.c.evaluation,
)
STREAM_COLUMNS = (
    streams.c.run,
    streams.c.role,
    streams.c.rank,
    streams.c.host,
    streams.c.started,
    streams.c.last_step,
    streams.c.last_step_time,
    streams.c.completed_step,
    streams.c.completed_time,
    streams.c.precision,
    streams.c.latest,
    streams.c.counters,
    streams.c.lost,
    streams.c.backlog,
    streams.c.last_seen,
    streams.c.bye_reason,
    streams.c.bye,
)
"""The columns of runs and streams that the metrics of a run are made of."""

RUN_MARK = (runs.c.id, runs.c.ended, runs.c.state, runs.c.started, type_coerce(runs.c.evaluation, Text))
"""Every write that changes one of the columns of runs above changes one of these, too."""

RUNS_PER_QUERY = 500
"""Runs per statement in queries by id."""


def marks(connection: Connection, ended_after: int, seen_since: int) -> Iterator[tuple[str, int | None, Mark]]:
    """Yields (id, ended, mark) of each run that is running or ended after this moment.

    While a run's mark is unchanged, so are its metrics.

    Args:
        connection: The transaction.
        ended_after: In ns.
        seen_since: Streams with contact since this moment are reporting, in ns.
    """
    query: Select[Any] = select(*RUN_MARK, *STREAM_MARK, seen(seen_since))
    query = query.outerjoin(streams, streams.c.run == runs.c.id)
    shown = or_(runs.c.state == "running", runs.c.ended > ended_after)
    rows = connection.execute(query.where(shown).order_by(runs.c.id, streams.c.id))
    for run, of_run in groupby(map(tuple, rows), key=itemgetter(0)):
        mark = tuple(of_run)
        yield run, mark[0][1], mark


def with_ids(connection: Connection, ids: Sequence[str]) -> Iterator[tuple[Row[Any], Rows]]:
    """Returns these runs, each with its streams."""
    for begin in range(0, len(ids), RUNS_PER_QUERY):
        yield from _with_streams(connection, runs.c.id.in_(ids[begin : begin + RUNS_PER_QUERY]))


def incidents_since(connection: Connection, closed_after: int) -> Rows:
    """Returns the incidents that are not closed or were closed after this moment."""
    columns = (incidents.c.run, runs.c.project, incidents.c.verdict, incidents.c.severity, incidents.c.state)
    query: Select[Any] = select(*columns).join(runs, incidents.c.run == runs.c.id)
    recent = or_(incidents.c.state.in_(("open", "acknowledged")), incidents.c.closed > closed_after)
    return connection.execute(query.where(recent)).all()


def fleet(connection: Connection) -> Rows:
    return connection.execute(select(totals)).all()


def storage_bytes(connection: Connection) -> int:
    """Bytes of the database on disk."""
    if connection.dialect.name == "sqlite":
        pages = connection.execute(text("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"))
        return int(pages.scalar_one())
    return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())


def judged_last(connection: Connection) -> int | None:
    """Returns the earliest last judgement among running runs, in ns.

    None if no running run was judged yet.
    """
    query = select(func.min(runs.c.judged_at)).where(runs.c.state == "running", runs.c.judged_at > 0)
    earliest: int | None = connection.execute(query).scalar_one()
    return earliest


def _with_streams(connection: Connection, which: ColumnElement[bool]) -> list[tuple[Row[Any], Rows]]:
    """Returns runs with their streams, the oldest stream first."""
    of_runs: Select[Any] = select(*RUN_COLUMNS)
    of_streams: Select[Any] = select(*STREAM_COLUMNS).join(runs, streams.c.run == runs.c.id)
    run_rows = connection.execute(of_runs.where(which)).all()
    of_run: dict[str, list[Row[Any]]] = {run.id: [] for run in run_rows}
    for stream in connection.execute(of_streams.where(which).order_by(streams.c.started, streams.c.id)):
        of_run[stream.run].append(stream)
    return [(run, of_run[run.id]) for run in run_rows]
