"""Computes the changes of a checked batch, then writes them.

decide() uses no database, so it holds no lock. Its result is valid while the stream's row has not changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ammeter import verdicts
from ammeter.counters import stream as stream_counters
from ammeter.verdicts.framework.finding import Finding, Judged
from ammeter.wire import columns, frames
from ammeter.wire.printable import storable
from ammeter_server.db import Connection
from ammeter_server.db.json_safe import plain
from ammeter_server.db.queries import streams
from ammeter_server.db.queries.streams import StreamState
from ammeter_server.db.step_tables import day_of
from ammeter_server.http import limits
from ammeter_server.ingest.batch_reader import ParsedBatch, read
from ammeter_server.ingest.stream_cache import CachedStream
from ammeter_server.process import self_metrics
from ammeter_server.runs.latest_values import latest

MAX_SCHEMAS = 256
MAX_SCHEMA_BYTES = 256 * 2**20
"""Of one stream. Each new name in run.log adds a schema; one of a thousand tensors takes about 100 KB."""

MAX_EVENTS = 1_000_000
"""Stored events of one stream. Further events are evaluated like all others, and counted as lost."""

EVENTS_CAP = "events-cap"


@dataclass(frozen=True)
class StreamUpdate:
    """The changes that one batch makes to its stream.

    Attributes:
        progress: Columns of the stream that every batch writes.
        said: Columns that hello and bye write.
        chunks: New rows of chunks.
        events: New rows of events.
        schemas: New schemas by id.
        findings: New findings by verdict.
        faults: Verdicts that failed.
        schema: In force after the batch.
        awaited: Whether the judge has to evaluate the run.
        values: The number of measured values.
        dropped: Events above MAX_EVENTS.
        losses: Records that the sender or the server has dropped.
    """

    progress: dict[str, Any]
    said: dict[str, Any]
    chunks: list[dict[str, Any]]
    events: list[dict[str, Any]]
    schemas: dict[str, frames.Schema]
    findings: dict[str, Finding]
    faults: list[str]
    schema: frames.Schema | None
    awaited: bool
    values: int
    dropped: int = 0
    losses: Sequence[frames.Lost] = ()


@dataclass(frozen=True)
class Judgement:
    """The result of the verdicts for new rows: their states, faults, findings and the verdicts that failed."""

    states: bytes
    faults: Mapping[str, str]
    findings: dict[str, Finding] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


def decide(known: CachedStream, batch: frames.Batch, end: int, now: int) -> StreamUpdate:
    """Computes the changes of a batch that begins at the stream's offset. Raises a 422 problem to refuse it."""
    state = known.state
    last_step = -1 if state.last_step is None else state.last_step
    found = read(batch.items, known.schema, last_step, state.bye_reason is not None)
    views = [stretch.view() for stretch in found.stretches if stretch.rows or stretch.frames]
    role = found.hello.role if found.hello else state.role
    judged = judge_views(state.states, state.faults, views if role == "rank" else (), known.decoded)
    awaited = bool(judged.findings) or found.bye is not None or (found.hello is not None and known.schema is None)
    room = max(0, MAX_EVENTS - state.events)
    kept, dropped = found.events[:room], len(found.events[room:])
    beyond = [frames.Lost(EVENTS_CAP, events=dropped)] if dropped else []
    losses = [*found.losses, *batch.gaps, *beyond]
    counted = _totals(state, views, losses)
    moved = {"version": state.version + awaited, "states": judged.states, "faults": judged.faults}
    return StreamUpdate(
        progress=_liveness(batch, end, now) | counted | _position(state, found, len(kept)) | moved,
        said=_identity(found),
        chunks=[_chunk(state, *chunk, now) for chunk in found.chunks],
        events=[_event(state, number, event, now) for number, event in enumerate(kept, state.events)],
        schemas=found.schemas,
        findings=judged.findings,
        faults=judged.failed,
        schema=found.stretches[-1].schema if found.stretches else None,
        awaited=awaited,
        values=sum(view.values.size for view in views),
        dropped=dropped,
        losses=losses,
    )


def write(connection: Connection, known: CachedStream, change: StreamUpdate, now: int) -> CachedStream | None:
    """Writes the changes of a stream whose row is locked.

    Returns:
        The stream after the changes; None where its row has to be read again.
    """
    state = known.state
    for schema_id, schema in change.schemas.items():
        streams.add_schema(connection, state.run, state.id, schema_id, msgspec.msgpack.encode(schema))
    streams.add_chunks(connection, change.chunks)
    streams.add_events(connection, change.events)
    _put_findings(connection, state.run, state.id, change.findings, now)
    assert known.raw is not None
    moved = state._replace(**change.progress)
    raw = streams.update_progress(connection, state, known.raw, moved)
    for verdict in change.faults:
        self_metrics.verdict_faults.labels(verdict).inc()
    if change.dropped:
        self_metrics.limited.labels("events").inc(change.dropped)
    if change.said:
        streams.put(connection, state.run, state.id, change.said)
        return None
    return CachedStream(raw, moved, change.schema, known.decoded)


def check_schemas(connection: Connection, state: StreamState, schemas: Mapping[str, frames.Schema]) -> None:
    """Raises a 422 problem where a stream would have too many schemas."""
    if not schemas:
        return
    count, size = streams.schema_sizes(connection, state.run, state.id)
    if count + len(schemas) > MAX_SCHEMAS or size > MAX_SCHEMA_BYTES:
        said = (
            f"the stream has {count} schemas of {size} bytes and brings {len(schemas)} more; log a fixed set of names"
        )
        raise limits.over("schemas", 422, said, most=MAX_SCHEMAS)


def load_stream(connection: Connection, raw: streams.Raw) -> CachedStream:
    """Parses a stream's row and loads its schema."""
    state = streams.parse_row(connection, raw)
    return CachedStream(raw, state, schema_of(connection, state))


def schema_of(connection: Connection, state: StreamState) -> frames.Schema | None:
    """The schema in force at the stream's end; None before its first hello."""
    if state.schema is None:
        return None
    return msgspec.msgpack.decode(streams.schema(connection, state.run, state.id, state.schema), type=frames.Schema)


def judge_views(
    states: bytes,
    faults: Mapping[str, str],
    views: Iterable[columns.View],
    decoded: dict[str, tuple[bytes, Any]] | None = None,
) -> Judgement:
    """Runs the verdicts over new views of a stream, from its stored states and faults."""
    judged = Judged(msgspec.msgpack.decode(states, type=dict[str, bytes]), [])
    findings, failed = dict[str, Finding](), list[str]()
    for view in views:
        judged = verdicts.judge(judged.states, view, decoded)
        findings |= {finding.verdict: finding for finding in judged.findings}
        faults = {**faults, **judged.faults} if judged.faults else faults
        failed += judged.faults
    return Judgement(msgspec.msgpack.encode(judged.states), faults, findings, failed)


def judge_tick(state: StreamState, tick: columns.Tick) -> Judgement | None:
    """Runs the verdicts for the passing of time. None where that changes nothing."""
    judged = judge_views(state.states, state.faults, [columns.view(frames.Schema(), (), tick=tick)])
    return None if judged.states == state.states and not judged.findings else judged


def store_tick(connection: Connection, state: StreamState, judged: Judgement, now: int) -> bool:
    """Stores the result of judge_tick(). Returns whether it has findings."""
    _put_findings(connection, state.run, state.id, judged.findings, now)
    found = bool(judged.findings)
    values = {"states": judged.states, "faults": judged.faults, "version": state.version + found}
    streams.put(connection, state.run, state.id, values)
    for verdict in judged.failed:
        self_metrics.verdict_faults.labels(verdict).inc()
    return found


def _put_findings(connection: Connection, run: str, stream: str, findings: Mapping[str, Finding], now: int) -> None:
    for verdict, finding in findings.items():
        streams.put_finding(connection, run, stream, verdict, plain(msgspec.structs.asdict(finding)), now)


def _chunk(state: StreamState, packed: frames.Block, first_time: int, last_time: int, now: int) -> dict[str, Any]:
    return {
        "run": state.run,
        "stream": state.id,
        "first_step": packed.first_step,
        "day": day_of(now),
        "last_step": packed.last_step,
        "first_time": first_time,
        "last_time": last_time,
        "rows": packed.rows,
        "columns": packed.columns,
        "schema": packed.schema,
        "received": now,
        "data": packed.data,
    }


def _event(state: StreamState, number: int, event: frames.Event, now: int) -> dict[str, Any]:
    place = {"run": state.run, "stream": state.id, "number": number, "day": day_of(now)}
    return place | {"name": storable(event.name), "step": event.step, "time": event.time, "data": event.data}


def _liveness(batch: frames.Batch, end: int, now: int) -> dict[str, Any]:
    return {"acknowledged": end, "last_seen": now, "alive": batch.alive, "backlog": batch.backlog}


def _totals(state: StreamState, views: Sequence[columns.View], losses: Sequence[frames.Lost]) -> dict[str, Any]:
    counters, values, precision = state.counters, state.latest, state.precision
    for view in views:
        counters = stream_counters.advance(counters, view)
        values = latest(values, view)
        precision = stream_counters.precision(precision, view)
    return {
        "counters": counters,
        "latest": values,
        "precision": precision if precision is state.precision else storable(precision or ""),
        "lost": stream_counters.add_losses(state.lost, losses) if losses else state.lost,
    }


def _position(state: StreamState, found: ParsedBatch, events: int) -> dict[str, Any]:
    """The stream's new position. events: the number of newly stored events."""
    return {
        "events": state.events + events,
        "rows": state.rows + sum(packed.rows for packed, _, _ in found.chunks),
        "last_step": found.last_step if found.chunks else state.last_step,
        "last_step_time": found.chunks[-1][2] if found.chunks else state.last_step_time,
    }


def _identity(found: ParsedBatch) -> dict[str, Any]:
    """The columns that hello and bye define."""
    said: dict[str, Any] = {}
    if found.hello is not None:
        hello = found.hello
        said |= {"role": hello.role, "rank": hello.rank, "world_size": hello.world_size, "host": storable(hello.host)}
        said |= {"pid": hello.pid, "started": hello.started, "schema": found.stretches[-1].schema_id}
    if found.bye is not None:
        bye = msgspec.structs.asdict(found.bye)
        said |= {"bye": bye, "bye_reason": found.bye.reason}
    return said
