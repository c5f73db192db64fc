"""What a checked batch changes in its stream: decided first, from what is known of the stream; then written.

Deciding touches no database, so that nobody waits for it. What was decided holds while the stream's row is the one that
it was decided from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ammeter import verdicts
from ammeter.verdicts.framework.finding import Finding, Judged
from ammeter.wire import columns, frames
from ammeter_server.db import Connection
from ammeter_server.db.json_safe import plain, text
from ammeter_server.db.queries import streams
from ammeter_server.db.queries.streams import StreamState
from ammeter_server.db.step_tables import day_of
from ammeter_server.http import limits
from ammeter_server.ingest.batch_reader import ParsedBatch, read
from ammeter_server.ingest.stream_cache import CachedStream
from ammeter_server.process import self_metrics
from ammeter_server.runs import stream_counters as progress

MAX_SCHEMAS = 256
MAX_SCHEMA_BYTES = 256 * 2**20
"""Schemas of one stream: it gets another whenever run.log brings a new name. A thousand tensors take some 100 KB."""

MAX_EVENTS = 1_000_000
"""Of one stream that are kept. Those beyond are judged like all others, and counted as lost."""

EVENTS_CAP = "events-cap"


@dataclass(frozen=True)
class StreamUpdate:
    """What a batch brings. progress: the columns that every batch writes; said: those that hello and bye do.

    awaited: whether the judge has something new to look at. values: numbers in it. dropped: events that are not kept.
    losses: what it says is gone, or is not kept.
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
    """What the verdicts make of new views: their states, those that failed, what they conclude now."""

    states: bytes
    faults: Mapping[str, str]
    findings: dict[str, Finding] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


def decide(known: CachedStream, batch: frames.Batch, end: int, now: int) -> StreamUpdate:
    """What a batch that begins at the stream's offset changes. Raises a 422 problem for one that does not fit."""
    held = known.held
    last_step = -1 if held.last_step is None else held.last_step
    found = read(batch.items, known.schema, last_step, held.bye_reason is not None)
    views = [stretch.view() for stretch in found.stretches if stretch.rows or stretch.frames]
    role = found.hello.role if found.hello else held.role
    judged = judge_views(held.states, held.faults, views if role == "rank" else (), known.decoded)
    awaited = bool(judged.findings) or found.bye is not None or (found.hello is not None and known.schema is None)
    room = max(0, MAX_EVENTS - held.events)
    kept, dropped = found.events[:room], len(found.events[room:])
    beyond = [frames.Lost(EVENTS_CAP, events=dropped)] if dropped else []
    losses = [*found.losses, *batch.gaps, *beyond]
    counted = _totals(held, views, losses)
    moved = {"version": held.version + awaited, "states": judged.states, "faults": judged.faults}
    return StreamUpdate(
        progress=_liveness(batch, end, now) | counted | _position(held, found, len(kept)) | moved,
        said=_identity(found),
        chunks=[_chunk(held, *each, now) for each in found.chunks],
        events=[_event(held, number, each, now) for number, each in enumerate(kept, held.events)],
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
    """Writes a change of a stream whose row is held and known. Returns what is known from now on, None where that has
    to be looked up."""
    held = known.held
    for schema_id, schema in change.schemas.items():
        streams.add_schema(connection, held.run, held.id, schema_id, msgspec.msgpack.encode(schema))
    streams.add_chunks(connection, change.chunks)
    streams.add_events(connection, change.events)
    _put_findings(connection, held.run, held.id, change.findings, now)
    assert known.raw is not None
    moved = held._replace(**change.progress)
    raw = streams.update_progress(connection, held, known.raw, moved)
    for verdict in change.faults:
        self_metrics.verdict_faults.labels(verdict).inc()
    if change.dropped:
        self_metrics.limited.labels("events").inc(change.dropped)
    if change.said:
        streams.put(connection, held.run, held.id, change.said)
        return None
    return CachedStream(raw, moved, change.schema, known.decoded)


def check_schemas(connection: Connection, held: StreamState, schemas: Mapping[str, frames.Schema]) -> None:
    """Raises a 422 problem where a stream has too many."""
    if not schemas:
        return
    count, size = streams.schemas_held(connection, held.run, held.id)
    if count + len(schemas) > MAX_SCHEMAS or size > MAX_SCHEMA_BYTES:
        said = (
            f"the stream has {count} schemas of {size} bytes and brings {len(schemas)} more; log a fixed set of names"
        )
        raise limits.over("schemas", 422, said, most=MAX_SCHEMAS)


def load_stream(connection: Connection, raw: streams.Raw) -> CachedStream:
    """What a stream's row says, and its schema."""
    held = streams.parse_row(connection, raw)
    return CachedStream(raw, held, schema_of(connection, held))


def schema_of(connection: Connection, held: StreamState) -> frames.Schema | None:
    """The schema in force at the stream's end; None before its first hello."""
    if held.schema is None:
        return None
    return msgspec.msgpack.decode(streams.schema(connection, held.run, held.id, held.schema), type=frames.Schema)


def judge_views(
    states: bytes,
    faults: Mapping[str, str],
    views: Iterable[columns.View],
    decoded: dict[str, tuple[bytes, Any]] | None = None,
) -> Judgement:
    """Runs the verdicts over the views of a stream, from the states and faults that it had before."""
    judged = Judged(msgspec.msgpack.decode(states, type=dict[str, bytes]), [])
    findings, failed = dict[str, Finding](), list[str]()
    for view in views:
        judged = verdicts.judge(judged.states, view, decoded)
        findings |= {finding.verdict: finding for finding in judged.findings}
        faults = {**faults, **judged.faults} if judged.faults else faults
        failed += judged.faults
    return Judgement(msgspec.msgpack.encode(judged.states), faults, findings, failed)


def judge_tick(held: StreamState, tick: columns.Tick) -> Judgement | None:
    """Lets the verdicts look at the clock. None where that changes nothing."""
    judged = judge_views(held.states, held.faults, [columns.view(frames.Schema(), (), tick=tick)])
    return None if judged.states == held.states and not judged.findings else judged


def store_tick(connection: Connection, held: StreamState, judged: Judgement, now: int) -> bool:
    """Stores what the verdicts make of the clock. Returns whether they conclude anything."""
    _put_findings(connection, held.run, held.id, judged.findings, now)
    found = bool(judged.findings)
    values = {"states": judged.states, "faults": judged.faults, "version": held.version + found}
    streams.put(connection, held.run, held.id, values)
    for verdict in judged.failed:
        self_metrics.verdict_faults.labels(verdict).inc()
    return found


def _put_findings(connection: Connection, run: str, stream: str, findings: Mapping[str, Finding], now: int) -> None:
    for verdict, finding in findings.items():
        streams.put_finding(connection, run, stream, verdict, plain(msgspec.structs.asdict(finding)), now)


def _chunk(held: StreamState, packed: frames.Block, first_time: int, last_time: int, now: int) -> dict[str, Any]:
    return {
        "run": held.run,
        "stream": held.id,
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


def _event(held: StreamState, number: int, event: frames.Event, now: int) -> dict[str, Any]:
    place = {"run": held.run, "stream": held.id, "number": number, "day": day_of(now)}
    return place | {"name": text(event.name), "step": event.step, "time": event.time, "data": event.data}


def _liveness(batch: frames.Batch, end: int, now: int) -> dict[str, Any]:
    return {"acknowledged": end, "heard": now, "alive": batch.alive, "backlog": batch.backlog}


def _totals(held: StreamState, views: Sequence[columns.View], losses: Sequence[frames.Lost]) -> dict[str, Any]:
    counters, latest, precision = held.counters, held.latest, held.precision
    for view in views:
        counters = progress.advance(counters, view)
        latest = progress.latest(latest, view)
        precision = progress.precision(precision, view)
    return {
        "counters": counters,
        "latest": latest,
        "precision": precision if precision is held.precision else text(precision or ""),
        "lost": progress.lost(held.lost, losses) if losses else held.lost,
    }


def _position(held: StreamState, found: ParsedBatch, events: int) -> dict[str, Any]:
    """How far the stream has come. events: how many more are kept."""
    return {
        "events": held.events + events,
        "rows": held.rows + sum(packed.rows for packed, _, _ in found.chunks),
        "last_step": found.last_step if found.chunks else held.last_step,
        "last_step_time": found.chunks[-1][2] if found.chunks else held.last_step_time,
    }


def _identity(found: ParsedBatch) -> dict[str, Any]:
    """What hello and bye say about the stream itself."""
    said: dict[str, Any] = {}
    if found.hello is not None:
        hello = found.hello
        said |= {"role": hello.role, "rank": hello.rank, "world_size": hello.world_size, "host": text(hello.host)}
        said |= {"pid": hello.pid, "started": hello.started, "schema": found.stretches[-1].schema_id}
    if found.bye is not None:
        bye = msgspec.structs.asdict(found.bye)
        said |= {"bye": bye, "bye_reason": found.bye.reason}
    return said
