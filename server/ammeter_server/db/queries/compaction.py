"""Queries of the keeper: which streams have blocks waiting, and how these become segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Select, and_, delete, func, or_, select, update

from ammeter_server.db.engine import insert_or_ignore
from ammeter_server.db.step_tables import chunks, columns, segments
from ammeter_server.db.tables import compaction_leases, schemas, streams

Rows = Sequence[Row[Any]]


class Due(NamedTuple):
    """A stream that may have something to do. rows: that have come. ended: it has, and not all is done."""

    run: str
    id: str
    rows: int
    ended: bool


def due(connection: Connection, heard_since: int, now: int, rows: int) -> list[Due]:
    """Streams heard since then that no keeper is at: those with so many rows more than at the last time, and those that
    have ended."""
    same = and_(compaction_leases.c.run == streams.c.run, compaction_leases.c.stream == streams.c.id)
    free = and_(
        compaction_leases.c.finished.is_(False),
        or_(compaction_leases.c.claimed_by.is_(None), compaction_leases.c.claimed_until < now),
    )
    ended = streams.c.bye_reason.is_not(None)
    enough = or_(ended, streams.c.rows - func.coalesce(compaction_leases.c.rows, 0) >= rows)
    query = select(streams.c.run, streams.c.id, streams.c.rows, ended).outerjoin_from(streams, compaction_leases, same)
    query = query.where(streams.c.heard >= heard_since, or_(compaction_leases.c.run.is_(None), free), enough)
    return [Due(*row) for row in connection.execute(query)]


def claim(connection: Connection, run: str, stream: str, by: str, now: int, until: int) -> bool | None:
    """Whether the stream is now this keeper's until the lease ends; None where it is, and another left it behind."""
    connection.execute(insert_or_ignore(connection, compaction_leases).values(run=run, stream=stream))
    mine = update(compaction_leases).where(compaction_leases.c.run == run, compaction_leases.c.stream == stream)
    mine = mine.values(claimed_by=by, claimed_until=until)
    if connection.execute(mine.where(compaction_leases.c.claimed_by.is_(None))).rowcount == 1:
        return True
    return None if connection.execute(mine.where(compaction_leases.c.claimed_until < now)).rowcount == 1 else False


def hold(connection: Connection, run: str, stream: str, by: str, until: int) -> bool:
    """Whether the stream is still this keeper's; then until then, and nobody takes it over in this transaction."""
    mine = and_(
        compaction_leases.c.run == run, compaction_leases.c.stream == stream, compaction_leases.c.claimed_by == by
    )
    return connection.execute(update(compaction_leases).where(mine).values(claimed_until=until)).rowcount == 1


def release(connection: Connection, run: str, stream: str, by: str, rows: int, finished: bool) -> None:
    """Gives the stream back. rows: that had come when the work began. finished: nothing is left, or ever will be."""
    mine = and_(
        compaction_leases.c.run == run, compaction_leases.c.stream == stream, compaction_leases.c.claimed_by == by
    )
    values = {"claimed_by": None, "claimed_until": 0, "rows": rows, "finished": finished}
    connection.execute(update(compaction_leases).where(mine).values(**values))


def finish(connection: Connection, run: str, stream: str, rows: int) -> bool:
    """Notes that nothing is left or ever will be of a stream. Returns whether that holds: nobody is at it, or was."""
    row = {"run": run, "stream": stream, "rows": rows, "finished": True}
    added = connection.execute(insert_or_ignore(connection, compaction_leases).values(row)).rowcount
    if added == 1:
        return True
    free = and_(
        compaction_leases.c.run == run, compaction_leases.c.stream == stream, compaction_leases.c.claimed_by.is_(None)
    )
    return connection.execute(update(compaction_leases).where(free).values(rows=rows, finished=True)).rowcount == 1


def state(connection: Connection, run: str, stream: str) -> tuple[int, bool]:
    """(rows that have come, whether the stream has ended)"""
    query = select(streams.c.rows, streams.c.bye_reason).where(streams.c.run == run, streams.c.id == stream)
    rows, reason = connection.execute(query).one_or_none() or (0, None)
    return rows, reason is not None


def covered(connection: Connection, run: str, stream: str) -> int:
    """The last step that is in a segment; -1 before the first."""
    query = select(segments.c.last_step).where(segments.c.run == run, segments.c.stream == stream)
    found = connection.execute(query.order_by(segments.c.first_step.desc()).limit(1)).scalar_one_or_none()
    return -1 if found is None else found


def waiting(connection: Connection, run: str, stream: str, after: int) -> Rows:
    """The stream's blocks with rows behind a step, in order, without their data."""
    wanted = (chunks.c.first_step, chunks.c.last_step, chunks.c.rows, chunks.c.columns, chunks.c.schema, chunks.c.day)
    query: Select[Any] = select(*wanted).where(chunks.c.run == run, chunks.c.stream == stream)
    query = query.where(chunks.c.last_step > after)
    return connection.execute(query.order_by(chunks.c.first_step)).all()


def blocks(connection: Connection, run: str, stream: str, first: int, last: int) -> Rows:
    """The blocks that begin between these steps, with their data."""
    query = select(chunks).where(chunks.c.run == run, chunks.c.stream == stream)
    return connection.execute(query.where(chunks.c.first_step.between(first, last)).order_by(chunks.c.first_step)).all()


def schema(connection: Connection, run: str, stream: str, schema_id: str) -> bytes:
    query = select(schemas.c.body).where(schemas.c.run == run, schemas.c.stream == stream, schemas.c.id == schema_id)
    body: bytes = connection.execute(query).scalar_one()
    return body


def add_columns(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Columns of a segment that is not there yet."""
    connection.execute(columns.insert(), rows)


def add_segment(connection: Connection, row: Mapping[str, Any]) -> None:
    """From now on its columns count, and the blocks that it was made of do not."""
    connection.execute(segments.insert().values(row))


def columns_behind(connection: Connection, run: str, stream: str, after: int) -> list[tuple[int, int]]:
    """(part, first_step) of columns that were written for a segment that never came to be."""
    query = select(columns.c.part, columns.c.first_step).where(columns.c.run == run, columns.c.stream == stream)
    return [(part, first) for part, first in connection.execute(query.where(columns.c.first_step > after))]


def remove_columns(connection: Connection, run: str, stream: str, some: Sequence[tuple[int, int]]) -> None:
    for part, first_step in some:
        here = and_(columns.c.run == run, columns.c.stream == stream, columns.c.part == part)
        connection.execute(delete(columns).where(here, columns.c.first_step == first_step))


def remove_blocks(connection: Connection, run: str, stream: str, first_steps: Sequence[int]) -> None:
    here = and_(chunks.c.run == run, chunks.c.stream == stream)
    connection.execute(delete(chunks).where(here, chunks.c.first_step.in_(first_steps)))


def covered_blocks(connection: Connection, run: str, stream: str) -> list[int]:
    """First steps of the blocks that a segment holds, all of their rows."""
    query = select(chunks.c.first_step).where(chunks.c.run == run, chunks.c.stream == stream)
    gone = query.where(chunks.c.last_step <= covered(connection, run, stream))
    return list(connection.execute(gone.order_by(chunks.c.first_step)).scalars())


def add_block(connection: Connection, row: Mapping[str, Any]) -> None:
    connection.execute(chunks.insert().values(dict(row)))
