"""The streams of a run that have steps, and the attempts that they form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, Select, bindparam, select

from ammeter.wire.ranks import Life
from ammeter_server.db.prepared import Prepared, PreparedList
from ammeter_server.db.step_tables import chunks, segments
from ammeter_server.db.tables import streams

LIFE_COLUMNS = (
    streams.c.id,
    streams.c.rank,
    streams.c.world_size,
    streams.c.started,
    streams.c.last_step_time,
    streams.c.bye,
    streams.c.bye_reason,
)
"""The columns that group streams into attempts."""


_of_run = streams.c.run == bindparam("of_run")
_of_rank = streams.c.role == "rank"
_lives = Prepared(select(*LIFE_COLUMNS).where(_of_run, _of_rank, streams.c.schema.is_not(None)))
_first_steps = [
    select(table.c.first_step)
    .where(table.c.run == bindparam("of_run"), table.c.stream == streams.c.id)
    .order_by(table.c.first_step)
    .limit(1)
    .scalar_subquery()
    for table in (segments, chunks)
]
_positions: Select[Any] = select(streams.c.id, streams.c.events, *_first_steps).where(_of_run)
_positions_of = PreparedList(lambda ids: _positions.where(streams.c.id.in_(ids)))
_sources = (
    select(
        streams.c.id,
        streams.c.rank,
        streams.c.started,
        streams.c.rows,
        streams.c.schema,
        streams.c.last_step,
    )
    .where(_of_run, _of_rank)
    .order_by(streams.c.rank, streams.c.started, streams.c.id)
)
_all_sources = Prepared(_sources)
_sources_of_rank = Prepared(_sources.where(streams.c.rank == bindparam("of_rank")))


class Source(NamedTuple):
    """A stream with steps.

    Attributes:
        rows: Rows received so far.
        schema: The schema of the last rows.
    """

    id: str
    rank: int
    started: int = 0
    rows: int = 0
    schema: str | None = None
    last_step: int | None = None


def streams_with_steps(
    connection: Connection, run: str, ranks: Sequence[int] | None = None, stream: str | None = None
) -> list[Source]:
    """Returns the run's streams with steps, by rank, and by time within a rank."""
    if stream is None and (ranks is None or len(ranks) == 1):
        query, values = (_all_sources, {}) if ranks is None else (_sources_of_rank, {"of_rank": ranks[0]})
        return [Source(*row) for row in query.all(connection, {"of_run": run, **values})]
    conditions: list[ColumnElement[bool]] = [] if ranks is None else [streams.c.rank.in_(ranks)]
    conditions += [] if stream is None else [streams.c.id == stream]
    return [Source(*row) for row in connection.execute(_sources.where(*conditions), {"of_run": run})]


def change_marks(connection: Connection, run: str, sources: Sequence[Source]) -> list[tuple[Any, ...]]:
    """Returns values that change with each new row or event of these streams.

    They change with deletions, too, which affect the first rows.
    """
    rows = _positions_of.all(connection, [life.id for life in sources], {"of_run": run})
    positions = {row[0]: tuple(row[1:]) for row in rows}
    return [(*life, positions.get(life.id)) for life in sources]


def stored_lives(connection: Connection, run: str) -> list[Life]:
    """Returns the run's streams with steps, with the times that group them into attempts."""
    return [life_of(row) for row in _lives.named(connection, {"of_run": run})]


def life_of(stream: Row[Any]) -> Life:
    """Converts a row that has LIFE_COLUMNS."""
    ended = _ended(stream.started, stream.last_step_time, stream.bye, stream.bye_reason)
    return Life(stream.id, stream.rank, stream.world_size, stream.started, ended)


def _ended(started: int, last_step_time: int | None, bye: Mapping[str, Any], reason: str | None) -> int | None:
    """Returns the time at which the process ended; None while it runs.

    For a process that was lost or ended by a signal the time of its last step, as its end is recorded later.
    """
    if reason is None:
        return None
    return last_step_time or started if reason in ("lost", "signal") else int(bye["time"])
