"""Queries of the list of runs and of a run's page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Row,
    Select,
    Text,
    and_,
    bindparam,
    func,
    or_,
    select,
    text,
    type_coerce,
)

from ammeter_server.db.prepared import Prepared, PreparedList
from ammeter_server.db.queries.paging import page
from ammeter_server.db.tables import incidents, runs, streams

Rows = Sequence[Row[Any]]

STREAM_COLUMNS = (
    streams.c.run,
    streams.c.id,
    streams.c.role,
    streams.c.rank,
    streams.c.world_size,
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
    streams.c.faults,
    streams.c.last_seen,
    streams.c.bye_reason,
    streams.c.bye,
)
"""The columns of its streams that the description of a run is made of."""

RUN_COLUMNS = (
    runs.c.id,
    runs.c.external_id,
    runs.c.name,
    runs.c.project,
    runs.c.state,
    runs.c.config,
    runs.c.tags,
    runs.c.environment,
    runs.c.world_size,
    runs.c.started,
    runs.c.ended,
)
"""The columns of the run itself, without the judge's data, which is much larger."""

BRIEF_COLUMNS = (runs.c.id, runs.c.external_id, runs.c.project, runs.c.state, runs.c.started, runs.c.ended)
"""The columns that tell whether a known description of a run is still true, beside the marks of its streams."""

STREAM_MARK = (
    streams.c.id,
    streams.c.acknowledged,
    streams.c.backlog,
    streams.c.completed_time,
    streams.c.postponed_from,
    streams.c.version,
)
"""Every write to a stream changes one of these. Two kinds do not: each request of a shipper writes `last_seen`, and
verdicts for the passing of time may write `faults`."""


class Wanted(NamedTuple):
    """Which runs a list has. None, empty and False: any.

    Attributes:
        words: Each is part of the name, the owner, a tag or the external id, or the id begins with it.
        tags: (name, value) of tags.
        broken: Only runs with an open incident.
    """

    state: str | None = None
    project: str | None = None
    owner: str | None = None
    words: Sequence[str] = ()
    tags: Sequence[tuple[str, str]] = ()
    broken: bool = False

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        """Yields the conditions for a row of the table runs."""
        for column, value in ((runs.c.state, self.state), (runs.c.project, self.project), (runs.c.owner, self.owner)):
            if value is not None:
                yield column == value
        for word in self.words:
            columns = (runs.c.name, runs.c.owner, runs.c.external_id, _tags_text)
            found = [column.icontains(word, autoescape=True) for column in columns]
            yield or_(runs.c.id.startswith(word.lower(), autoescape=True), *found)
        for name, value in self.tags:
            pair = msgspec.json.encode({name: value}).decode()[1:-1]
            yield _tags_text.contains(pair, autoescape=True)
        if self.broken:
            not_closed = select(incidents.c.run).where(incidents.c.state.in_(("open", "acknowledged")))
            yield runs.c.id.in_(not_closed)


_tags_text = type_coerce(runs.c.tags, Text)
"""The document as the text that is stored."""


def newest(
    connection: Connection,
    size: int,
    before: tuple[Any, ...] | None,
    wanted: Wanted = Wanted(),  # noqa: B008
) -> tuple[Rows, bool]:
    """Returns the BRIEF_COLUMNS of a page of runs, newest first, and whether there are more.

    before: (started, id) of the previous page's last run.
    """
    query: Select[Any] = select(*BRIEF_COLUMNS).order_by(runs.c.started.desc(), runs.c.id.desc())
    if before is not None:
        started, run = before
        query = query.where(or_(runs.c.started < started, and_(runs.c.started == started, runs.c.id < run)))
    return page(connection, query.where(*wanted.conditions()), size, runs.c.config, runs.c.tags, runs.c.environment)


def by_project(connection: Connection) -> dict[str, int]:
    """Returns the number of runs of each project."""
    query = select(runs.c.project, func.count()).group_by(runs.c.project)
    return {row[0]: row[1] for row in connection.execute(query)}


MAX_SEARCHED = 2_000
"""Runs of a project, the newest, among which tags are searched: a document has no index."""


def of_project(connection: Connection, project: str, since: int = 0, limit: int = MAX_SEARCHED) -> Rows:
    """Returns the newest runs of a project that started after `since`, newest first."""
    query: Select[Any] = select(*RUN_COLUMNS, runs.c.fleet_progress)
    query = query.where(runs.c.project == project, runs.c.started >= since)
    return connection.execute(query.order_by(runs.c.started.desc(), runs.c.id.desc()).limit(limit)).all()


def in_period(connection: Connection, project: str, since: int, until: int) -> Rows:
    """Returns the newest runs of a project that ended in a period, and those that go on, newest first.

    since, until: in ns; the end is not included.
    """
    ended = and_(runs.c.ended >= since, runs.c.ended < until)
    query: Select[Any] = select(*RUN_COLUMNS, runs.c.fleet_progress)
    query = query.where(runs.c.project == project, or_(ended, runs.c.state == "running"))
    return connection.execute(query.order_by(runs.c.started.desc(), runs.c.id.desc()).limit(MAX_SEARCHED)).all()


def named(connection: Connection, project: str, name: str) -> Rows:
    """Returns the newest runs of a project with this name, newest first."""
    query: Select[Any] = select(*RUN_COLUMNS).where(runs.c.project == project, runs.c.name == name)
    return connection.execute(query.order_by(runs.c.started.desc(), runs.c.id.desc()).limit(MAX_SEARCHED)).all()


def existing(connection: Connection, ids: Sequence[str]) -> dict[str, Row[Any]]:
    """Returns id -> (id, project) of those of the given runs that exist."""
    if len(ids) <= 2:  # a run's page: a query by one id reads only the node with that run
        rows = [row for run in ids for row in _existing.named(connection, [run], {})]
    else:
        rows = _existing.named(connection, ids, {})
    return {row.id: row for row in rows}


_is_it = runs.c.id == bindparam("of_run")
_exists = Prepared(select(runs.c.id).where(_is_it))
_ancestry = Prepared(select(runs.c.id, runs.c.project, runs.c.environment).where(_is_it))
_one = select(runs).where(_is_it)
_brief = Prepared(select(*BRIEF_COLUMNS).where(_is_it))
_existing = PreparedList(lambda ids: select(runs.c.id, runs.c.project).where(runs.c.id.in_(ids)))
_described = PreparedList(lambda ids: select(*RUN_COLUMNS).where(runs.c.id.in_(ids)))
_streams_of = PreparedList(
    lambda ids: select(*STREAM_COLUMNS).where(streams.c.run.in_(ids)).order_by(streams.c.started)
)
_marks = PreparedList(
    lambda ids: (
        select(streams.c.run, *STREAM_MARK, type_coerce(streams.c.faults, Text), seen(bindparam("of_seen_since")))
        .where(streams.c.run.in_(ids))
        .order_by(streams.c.run, streams.c.id)
    )
)
_superseded = incidents.c.closed_reason.is_not_distinct_from("superseded")
_severities = select(incidents.c.run, incidents.c.severity, incidents.c.state).where(~_superseded)
_incidents_of = PreparedList(lambda ids: _severities.where(incidents.c.run.in_(ids)))


def exists(connection: Connection, run: str) -> bool:
    return _exists.one(connection, {"of_run": run}) is not None


def ancestry(connection: Connection, run: str) -> Any:
    """Returns the run's id, project and environment, which names the run before it; None for an unknown run."""
    return _ancestry.first(connection, {"of_run": run})


def one(connection: Connection, run: str) -> Row[Any] | None:
    return connection.execute(_one, {"of_run": run}).one_or_none()


def brief(connection: Connection, run: str) -> Any:
    """Returns the run's BRIEF_COLUMNS; None for an unknown run."""
    return _brief.first(connection, {"of_run": run})


def described(connection: Connection, ids: Sequence[str]) -> Sequence[Any]:
    """Returns the RUN_COLUMNS of these runs, in no order."""
    return _described.named(connection, ids, {})


def with_ids(connection: Connection, ids: Sequence[str]) -> dict[str, Row[Any]]:
    """Returns id -> run."""
    return {row.id: row for row in connection.execute(select(runs).where(runs.c.id.in_(ids)))}


def streams_of(connection: Connection, ids: Sequence[str]) -> Sequence[Any]:
    """Returns the streams of these runs, oldest first, without the verdicts' states."""
    return _streams_of.named(connection, ids, {})


def marks_of(connection: Connection, ids: Sequence[str], seen_since: int) -> dict[str, tuple[Any, ...]]:
    """Returns run -> the mark of its streams. While it is unchanged, so are the rows of streams_of().

    `last_seen` is the exception. The mark only has whether it is at `seen_since`, in ns, or later.
    """
    rows = _marks.all(connection, ids, {"of_seen_since": seen_since})
    return {run: tuple(mark) for run, mark in groupby(rows, key=itemgetter(0))}


def seen(since: int | BindParameter[int]) -> ColumnElement[bool]:
    """Whether a stream had contact at this time, in ns, or later."""
    return streams.c.last_seen >= since


def snapshot(connection: Connection) -> None:
    """Makes all queries of this transaction see one moment."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))


def incidents_of(connection: Connection, ids: Sequence[str]) -> Sequence[Any]:
    """Returns (run, severity, state) of each incident of these runs.

    Incidents superseded by others are left out.
    """
    return _incidents_of.named(connection, ids, {})


def lives_of(connection: Connection, run: str, ids: Sequence[str]) -> dict[str, Row[Any]]:
    """Returns stream -> its numbers of rows and events and its end."""
    progress_columns = (streams.c.id, streams.c.rows, streams.c.events, streams.c.started)
    query: Select[Any] = select(*progress_columns, streams.c.last_step, streams.c.last_step_time, streams.c.counters)
    rows = connection.execute(query.where(streams.c.run == run, streams.c.id.in_(ids)))
    return {row.id: row for row in rows}
