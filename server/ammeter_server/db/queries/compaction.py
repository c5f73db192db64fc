"""Queries of the compaction: streams with waiting blocks, and the conversion to segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Select, and_, bindparam, delete, func, or_, select, update

from ammeter_server.db.engine import insert_or_ignore
from ammeter_server.db.prepared import Prepared
from ammeter_server.db.step_tables import chunks, columns, segments
from ammeter_server.db.tables import compaction_leases, schemas, streams

Rows = Sequence[Row[Any]]

_lease = and_(compaction_leases.c.run == streams.c.run, compaction_leases.c.stream == streams.c.id)
_is_free = and_(
    compaction_leases.c.finished.is_(False),
    or_(compaction_leases.c.claimed_by.is_(None), compaction_leases.c.claimed_until < bindparam("of_now")),
)
_has_ended = streams.c.bye_reason.is_not(None)
_new_rows = streams.c.rows - func.coalesce(compaction_leases.c.rows, 0)
_due = Prepared(
    select(streams.c.run, streams.c.id, streams.c.rows, _has_ended.label("ended"))
    .outerjoin_from(streams, compaction_leases, _lease)
    .where(streams.c.last_seen >= bindparam("of_seen_since"), or_(compaction_leases.c.run.is_(None), _is_free))
    .where(or_(_has_ended, _new_rows >= bindparam("of_rows")))
)
"""Built once, because it runs every second."""


class Due(NamedTuple):
    """A stream that may need compaction.

    Attributes:
        rows: Rows received so far.
        ended: Whether the stream has ended; its compaction is not finished.
    """

    run: str
    id: str
    rows: int
    ended: bool


def due(connection: Connection, seen_since: int, now: int, rows: int) -> list[Due]:
    """Returns unclaimed streams with contact since `seen_since` that may need compaction.

    These are the streams with at least `rows` new rows since the last compaction, and those that have ended.
    """
    return [Due(*row) for row in _due.named(connection, {"of_seen_since": seen_since, "of_now": now, "of_rows": rows})]


def claim(connection: Connection, run: str, stream: str, by: str, now: int, until: int) -> bool | None:
    """Claims the stream for a compaction worker until `until`.

    Returns:
        True if the stream was free, None if the expired claim of another worker was replaced, False if it is claimed.
    """
    connection.execute(insert_or_ignore(connection, compaction_leases).values(run=run, stream=stream))
    own_lease = update(compaction_leases).where(compaction_leases.c.run == run, compaction_leases.c.stream == stream)
    own_lease = own_lease.values(claimed_by=by, claimed_until=until)
    if connection.execute(own_lease.where(compaction_leases.c.claimed_by.is_(None))).rowcount == 1:
        return True
    return None if connection.execute(own_lease.where(compaction_leases.c.claimed_until < now)).rowcount == 1 else False


def extend(connection: Connection, run: str, stream: str, by: str, until: int) -> bool:
    """Extends the compaction worker's lease. Returns whether it still had the stream.

    No other worker can claim the stream during this transaction.
    """
    own_lease = and_(
        compaction_leases.c.run == run, compaction_leases.c.stream == stream, compaction_leases.c.claimed_by == by
    )
    return connection.execute(update(compaction_leases).where(own_lease).values(claimed_until=until)).rowcount == 1


def release(connection: Connection, run: str, stream: str, by: str, rows: int, finished: bool) -> None:
    """Releases the stream.

    Args:
        connection: The database.
        run: The run.
        stream: The stream.
        by: The compaction worker.
        rows: Rows received when its work began.
        finished: Whether nothing is left to do, now and later.
    """
    own_lease = and_(
        compaction_leases.c.run == run, compaction_leases.c.stream == stream, compaction_leases.c.claimed_by == by
    )
    values = {"claimed_by": None, "claimed_until": 0, "rows": rows, "finished": finished}
    connection.execute(update(compaction_leases).where(own_lease).values(**values))


def finish(connection: Connection, run: str, stream: str, rows: int) -> bool:
    """Marks a stream's compaction as finished, unless a compaction worker has claimed it.

    Returns whether the mark was set.
    """
    row = {"run": run, "stream": stream, "rows": rows, "finished": True}
    added = connection.execute(insert_or_ignore(connection, compaction_leases).values(row)).rowcount
    if added == 1:
        return True
    free = and_(
        compaction_leases.c.run == run, compaction_leases.c.stream == stream, compaction_leases.c.claimed_by.is_(None)
    )
    return connection.execute(update(compaction_leases).where(free).values(rows=rows, finished=True)).rowcount == 1


def state(connection: Connection, run: str, stream: str) -> tuple[int, bool]:
    """Returns (rows received so far, whether the stream has ended)."""
    query = select(streams.c.rows, streams.c.bye_reason).where(streams.c.run == run, streams.c.id == stream)
    rows, reason = connection.execute(query).one_or_none() or (0, None)
    return rows, reason is not None


def covered(connection: Connection, run: str, stream: str) -> int:
    """Returns the last step in a segment; -1 before the first segment."""
    query = select(segments.c.last_step).where(segments.c.run == run, segments.c.stream == stream)
    last_step = connection.execute(query.order_by(segments.c.first_step.desc()).limit(1)).scalar_one_or_none()
    return -1 if last_step is None else last_step


def waiting(connection: Connection, run: str, stream: str, after: int) -> Rows:
    """Returns the stream's blocks with rows after a step, in order, without their data."""
    wanted = (chunks.c.first_step, chunks.c.last_step, chunks.c.rows, chunks.c.columns, chunks.c.schema, chunks.c.day)
    query: Select[Any] = select(*wanted).where(chunks.c.run == run, chunks.c.stream == stream)
    query = query.where(chunks.c.last_step > after)
    return connection.execute(query.order_by(chunks.c.first_step)).all()


def blocks(connection: Connection, run: str, stream: str, first: int, last: int) -> Rows:
    """Returns the blocks that begin between these steps, with their data."""
    query = select(chunks).where(chunks.c.run == run, chunks.c.stream == stream)
    return connection.execute(query.where(chunks.c.first_step.between(first, last)).order_by(chunks.c.first_step)).all()


def schema(connection: Connection, run: str, stream: str, schema_id: str) -> bytes:
    query = select(schemas.c.body).where(schemas.c.run == run, schemas.c.stream == stream, schemas.c.id == schema_id)
    body: bytes = connection.execute(query).scalar_one()
    return body


def add_columns(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Adds columns of a segment whose own row is not added yet."""
    connection.execute(columns.insert(), rows)


def add_segment(connection: Connection, row: Mapping[str, Any]) -> None:
    """Adds the segment's row.

    From its commit on its columns are valid, and the blocks that it was made of are ignored.
    """
    connection.execute(segments.insert().values(row))


def orphaned_columns(connection: Connection, run: str, stream: str, after: int) -> list[tuple[int, int]]:
    """Returns (part, first_step) of columns whose segment was never added."""
    query = select(columns.c.part, columns.c.first_step).where(columns.c.run == run, columns.c.stream == stream)
    return [(part, first) for part, first in connection.execute(query.where(columns.c.first_step > after))]


def remove_columns(connection: Connection, run: str, stream: str, keys: Sequence[tuple[int, int]]) -> None:
    for part, first_step in keys:
        of_part = and_(columns.c.run == run, columns.c.stream == stream, columns.c.part == part)
        connection.execute(delete(columns).where(of_part, columns.c.first_step == first_step))


def remove_blocks(connection: Connection, run: str, stream: str, first_steps: Sequence[int]) -> None:
    of_stream = and_(chunks.c.run == run, chunks.c.stream == stream)
    connection.execute(delete(chunks).where(of_stream, chunks.c.first_step.in_(first_steps)))


def covered_blocks(connection: Connection, run: str, stream: str) -> list[int]:
    """Returns the first steps of blocks that segments cover completely."""
    query = select(chunks.c.first_step).where(chunks.c.run == run, chunks.c.stream == stream)
    query = query.where(chunks.c.last_step <= covered(connection, run, stream))
    return list(connection.execute(query.order_by(chunks.c.first_step)).scalars())


def add_block(connection: Connection, row: Mapping[str, Any]) -> None:
    connection.execute(chunks.insert().values(dict(row)))
