"""Queries for appending to a stream, under the lock of its row in `streams`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Select, and_, bindparam, case, func, select, update

from ammeter_server.db.engine import insert_or_ignore
from ammeter_server.db.prepared import Prepared, PreparedRow
from ammeter_server.db.step_tables import chunks, events
from ammeter_server.db.tables import findings, runs, schemas, streams


class StreamState(NamedTuple):
    """A row of `streams`: its columns by name and in order.

    The defaults are those of a stream that is not registered yet.
    """

    run: str
    id: str
    role: str = "rank"
    rank: int = 0
    world_size: int = 1
    host: str = ""
    pid: int = 0
    started: int = 0
    acknowledged: int = 0
    schema: str | None = None
    rows: int = 0
    events: int = 0
    last_step: int | None = None
    last_step_time: int | None = None
    completed_step: int | None = None
    completed_time: int | None = None
    postponed_from: int | None = None
    precision: str | None = None
    latest: Mapping[str, Any] = {}
    counters: Mapping[str, Any] = {}
    lost: Mapping[str, Any] = {}
    faults: Mapping[str, Any] = {}
    states: bytes = b"\x80"
    alive: bool = True
    backlog: int = 0
    last_seen: int = 0
    bye: Mapping[str, Any] = {}
    bye_reason: str | None = None
    version: int = 0
    opened: int = 0


Raw = tuple[Any, ...]
"""The same row as the driver returns it, with JSON documents as text."""

PROGRESS = (
    "acknowledged",
    "rows",
    "events",
    "last_step",
    "last_step_time",
    "completed_step",
    "completed_time",
    "postponed_from",
    "precision",
    "latest",
    "counters",
    "lost",
    "faults",
    "states",
    "alive",
    "backlog",
    "last_seen",
    "version",
)
"""The columns that every batch writes."""

_this = (streams.c.run == bindparam("of_run"), streams.c.id == bindparam("of_stream"))
_select_for_update = Prepared(select(streams).where(*_this).with_for_update())
_select_unlocked = Prepared(select(streams).where(*_this))
_update_progress = Prepared(update(streams).where(*_this).values({name: bindparam(f"to_{name}") for name in PROGRESS}))
_project = Prepared(select(runs.c.project).where(runs.c.id == bindparam("of_run")))
_add_chunk = Prepared(chunks.insert())
_finding = PreparedRow(findings)
_places = {name: place for place, name in enumerate(StreamState._fields)}
_progress_places = [_places[name] for name in PROGRESS]


def select_for_update(connection: Connection, run: str, stream: str) -> Raw | None:
    """Returns the stream's row as the driver has it, locked until the transaction ends.

    None for a stream that is not registered.
    """
    return _select_for_update.one(connection, {"of_run": run, "of_stream": stream})


def select_unlocked(connection: Connection, run: str, stream: str) -> Raw | None:
    """Returns the stream's row without a lock."""
    return _select_unlocked.one(connection, {"of_run": run, "of_stream": stream})


def parse_row(connection: Connection, raw: Raw) -> StreamState:
    """Converts a row of the driver."""
    readers = _codecs(connection).readers
    return StreamState(*(read(value) if read else value for read, value in zip(readers, raw, strict=True)))


def update_progress(connection: Connection, before: StreamState, raw: Raw, moved: StreamState) -> Raw:
    """Writes the PROGRESS columns of a row whose state was `before`. Returns the new row.

    Encodes only the values that changed.
    """
    after, writers = list(raw), _codecs(connection).writers
    for place in _progress_places:
        if moved[place] is not before[place]:
            write = writers[place]
            after[place] = write(moved[place]) if write else moved[place]
    written = {f"to_{name}": after[_places[name]] for name in PROGRESS}
    _update_progress.do(connection, {"of_run": before.run, "of_stream": before.id, **written})
    return tuple(after)


class _Codecs(NamedTuple):
    """Converters between values and the driver's types, for each column in order."""

    readers: Sequence[Callable[[Any], Any] | None]
    writers: Sequence[Callable[[Any], Any] | None]


_known_codecs: dict[str, _Codecs] = {}


def _codecs(connection: Connection) -> _Codecs:
    dialect = connection.dialect
    if dialect.name not in _known_codecs:
        readers = [column.type.result_processor(dialect, None) for column in streams.c]
        writers = [column.type.bind_processor(dialect) for column in streams.c]
        _known_codecs[dialect.name] = _Codecs(readers, writers)
    return _known_codecs[dialect.name]


def run_project(connection: Connection, run: str) -> str | None:
    row = _project.one(connection, {"of_run": run})
    return row[0] if row else None


def run_of(connection: Connection, run: str) -> Row[Any] | None:
    """Returns the columns of a run that the registration of a stream needs."""
    query: Select[Any] = select(runs.c.project, runs.c.external_id, runs.c.state, runs.c.ended).where(runs.c.id == run)
    return connection.execute(query).one_or_none()


def runs_of(connection: Connection, ids: Sequence[str]) -> dict[str, Row[Any]]:
    """Returns id -> the columns that the placement of a stream needs.

    Unknown runs are missing.
    """
    query: Select[Any] = select(
        runs.c.id, runs.c.external_id, runs.c.project, runs.c.state, runs.c.ended, runs.c.started
    )
    return {row.id: row for row in connection.execute(query.where(runs.c.id.in_(ids)))}


def runs_with_stream(connection: Connection, external_ids: Sequence[str], stream: str) -> Sequence[Row[Any]]:
    """Returns (id, external_id, project) of the runs that contain the stream.

    Only runs with one of these external ids count.
    """
    query: Select[Any] = select(runs.c.id, runs.c.external_id, runs.c.project).join(streams, streams.c.run == runs.c.id)
    return connection.execute(query.where(runs.c.external_id.in_(external_ids), streams.c.id == stream)).all()


def exists(connection: Connection, run: str, stream: str) -> bool:
    query = select(streams.c.id).where(streams.c.run == run, streams.c.id == stream)
    return connection.execute(query).first() is not None


def count(connection: Connection, run: str) -> int:
    return connection.execute(select(func.count()).where(streams.c.run == run)).scalar_one()


def add_run(connection: Connection, run: str, values: Mapping[str, Any]) -> None:
    """Inserts the run's row unless it exists.

    Fills in a row that was created before the run's first hello (started = 0).
    """
    connection.execute(insert_or_ignore(connection, runs).values(id=run, **values))
    if values["started"]:
        owner = case((runs.c.project == "default", values["project"]), else_=runs.c.project)
        filled = {**values, "project": owner}
        filled.pop("external_id", None)
        connection.execute(update(runs).where(runs.c.id == run, runs.c.started == 0).values(**filled))


def add(connection: Connection, run: str, stream: str, now: int) -> None:
    """Inserts the stream's row unless it exists."""
    connection.execute(insert_or_ignore(connection, streams).values(run=run, id=stream, opened=now, last_seen=now))


def schema(connection: Connection, run: str, stream: str, schema_id: str) -> bytes:
    query = select(schemas.c.body).where(schemas.c.run == run, schemas.c.stream == stream, schemas.c.id == schema_id)
    body: bytes = connection.execute(query).scalar_one()
    return body


def schema_sizes(connection: Connection, run: str, stream: str) -> tuple[int, int]:
    """Returns the number of a stream's schemas, and their total size in bytes."""
    size = func.coalesce(func.sum(func.length(schemas.c.body)), 0)
    query = select(func.count(), size).where(schemas.c.run == run, schemas.c.stream == stream)
    count, total = connection.execute(query).one()
    return count, int(total)


def add_schema(connection: Connection, run: str, stream: str, schema_id: str, body: bytes) -> None:
    row = {"run": run, "stream": stream, "id": schema_id, "body": body}
    connection.execute(insert_or_ignore(connection, schemas).values(row))


def add_chunks(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        _add_chunk.do(connection, row)


def add_events(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        connection.execute(events.insert(), rows)


def put_finding(connection: Connection, run: str, stream: str, verdict: str, body: Mapping[str, Any], now: int) -> None:
    """Stores a verdict's current finding in place of its previous one."""
    row = {"run": run, "stream": stream, "verdict": verdict, "body": body, "active": body["active"], "updated": now}
    _finding.put(connection, row)


def put(connection: Connection, run: str, stream: str, values: Mapping[str, Any]) -> None:
    connection.execute(update(streams).where(streams.c.run == run, streams.c.id == stream).values(**values))


def silent_streams(connection: Connection, before: int) -> list[tuple[str, str]]:
    """Returns (run, id) of ranks' streams in running runs without contact since `before`.

    Streams with a final record do not count.
    """
    query = (
        select(streams.c.run, streams.c.id)
        .join(runs, runs.c.id == streams.c.run)
        .where(streams.c.last_seen < before, streams.c.bye_reason.is_(None), runs.c.state == "running")
        .where(streams.c.role == "rank")
    )
    return [(run, stream) for run, stream in connection.execute(query)]


def postponed_streams(connection: Connection, before: int) -> list[tuple[str, str]]:
    """Returns (run, id) of streams with postponed rows and without contact since `before`."""
    query = select(streams.c.run, streams.c.id).where(
        streams.c.postponed_from.is_not(None), streams.c.last_seen < before
    )
    return [(run, stream) for run, stream in connection.execute(query)]


def stalled_streams(connection: Connection, before: int, since: int) -> list[tuple[str, str]]:
    """Returns (run, id) of ranks' streams that are up to date but without a step.

    Their shipper sent a request since `since`, and their last step closed before `before`. That time comes from the
    training host's clock; a clock that is behind only causes unneeded evaluations.
    """
    query = (
        select(streams.c.run, streams.c.id)
        .join(runs, runs.c.id == streams.c.run)
        .where(streams.c.last_step_time < before, streams.c.last_seen >= since, streams.c.alive.is_(True))
        .where(streams.c.backlog == 0, streams.c.bye_reason.is_(None), runs.c.state == "running")
        .where(streams.c.role == "rank")
    )
    return [(run, stream) for run, stream in connection.execute(query)]


def returned_streams(connection: Connection, since: int, verdict: str) -> list[tuple[str, str]]:
    """Returns (run, id) of streams with an active finding of the verdict and later contact."""
    same = and_(findings.c.run == streams.c.run, findings.c.stream == streams.c.id)
    query = (
        select(streams.c.run, streams.c.id)
        .join(findings, same)
        .where(findings.c.verdict == verdict, findings.c.active.is_(True))
        .where(streams.c.last_seen >= since, streams.c.bye_reason.is_(None))
    )
    return [(run, stream) for run, stream in connection.execute(query)]
