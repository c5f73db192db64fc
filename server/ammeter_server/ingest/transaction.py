"""Writes one checked batch inside a transaction: locks its stream, decides on the current row, stores the changes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from ammeter.verdicts.framework.finding import Finding
from ammeter.wire import frames
from ammeter_server.db import Connection, DatabaseError
from ammeter_server.db.json_safe import plain
from ammeter_server.db.queries import streams
from ammeter_server.db.queries.steps.rows import InTransaction, views
from ammeter_server.db.queries.streams import Raw, StreamState
from ammeter_server.http import limits
from ammeter_server.http.limits.run_quota import Quota
from ammeter_server.http.problems import Problem
from ammeter_server.ingest import registration, stream_update, validation
from ammeter_server.ingest.judgement import judge_views
from ammeter_server.ingest.parsing import Stretch
from ammeter_server.ingest.registration import IngestRequest
from ammeter_server.ingest.stream_update import CachedStream, StreamUpdate
from ammeter_server.process import self_metrics

log = logging.getLogger(__name__)

MAX_SCHEMAS = 256
MAX_SCHEMA_BYTES = 256 * 2**20
"""Of one stream. Each new name in run.log adds a schema; one of a thousand tensors takes about 100 KB."""

Answer = int | Exception
"""The committed offset, or the error because of which nothing was committed."""


@dataclass(frozen=True)
class PreparedBatch:
    """A checked batch, its cached stream and the changes computed from that; or the error that refuses it."""

    request: IngestRequest
    now: int
    batch: frames.Batch
    cached: CachedStream | None = None
    change: StreamUpdate | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class WriteResult:
    """The result of one batch, valid once its transaction is committed. stream: as it is then."""

    request: IngestRequest
    answer: Answer
    stream: CachedStream | None = None
    change: StreamUpdate | None = None


def write(connection: Connection, prepared: PreparedBatch, quota: Quota) -> WriteResult:
    """Writes one batch. A refusal or a conflict is part of the result; a database error ends the transaction."""
    request = prepared.request
    try:
        prepared, raw = _lock_stream(connection, prepared)
        request = prepared.request
        stream, change = _decide(connection, prepared, raw, quota)  # refuses before anything is written
    except DatabaseError:  # the transaction is lost
        raise
    except Exception as error:  # noqa: BLE001 - the other batches of the transaction go on
        return WriteResult(request, error)
    if stream.state.acknowledged != request.offset:
        return WriteResult(request, stream.state.acknowledged)
    if change is None:
        return WriteResult(request, request.offset, _write_heartbeat(connection, stream, prepared))
    if stream.state.schema is None:
        opened = _open_stream(connection, stream, prepared)
        request = replace(request, run=opened.state.run)
        if opened.state.acknowledged != request.offset:  # another sender has opened it since the first select
            return WriteResult(request, _offset_conflict(request, opened.state.acknowledged))
        stream = opened
    return WriteResult(request, request.end, _write_change(connection, stream, change, prepared.now), change)


@dataclass(frozen=True)
class CaughtUp:
    """A stream without postponed rows. has_findings: they had findings."""

    stream: CachedStream
    has_findings: bool


def catch_up(
    connection: Connection, run: str, stream: str, now: int, cached: CachedStream | None = None
) -> CaughtUp | None:
    """Judges the postponed rows of a stream.

    Returns:
        The stream as it is once the transaction is committed; None if it is gone or had no such rows.
    """
    raw = streams.select_for_update(connection, run, stream)
    if raw is None:
        return None
    current = cached if cached is not None and cached.raw == raw else _load(connection, raw)
    if current.state.postponed_from is None or current.schema is None:
        return None
    rows = [current.postponed.view()] if current.postponed is not None else []
    judgement = judge_views(current.state, rows, current.decoded)
    has_findings = bool(judgement.findings)
    put_findings(connection, run, stream, judgement.findings, now)
    after = current.state._replace(**judgement.columns, version=current.state.version + has_findings)
    raw = streams.update_progress(connection, current.state, raw, after)
    self_metrics.count_faults(judgement.failed)
    return CaughtUp(replace(current, raw=raw, state=after, postponed=None), has_findings)


def put_findings(connection: Connection, run: str, stream: str, findings: Mapping[str, Finding], now: int) -> None:
    for verdict, finding in findings.items():
        streams.put_finding(connection, run, stream, verdict, plain(msgspec.structs.asdict(finding)), now)


def _lock_stream(connection: Connection, prepared: PreparedBatch) -> tuple[PreparedBatch, Raw | None]:
    """Locks the row of the batch's stream. A cached stream that was deleted meanwhile is discarded."""
    if prepared.error is not None:
        raise prepared.error
    if prepared.cached is not None:
        raw = streams.select_for_update(connection, prepared.request.run, prepared.request.stream)
        if raw is not None:
            return prepared, raw
    request = registration.place_stream(connection, prepared.request, prepared.batch)
    prepared = replace(prepared, request=request, cached=None, change=None)
    return prepared, streams.select_for_update(connection, request.run, request.stream)


def _decide(
    connection: Connection, prepared: PreparedBatch, raw: Raw | None, quota: Quota
) -> tuple[CachedStream, StreamUpdate | None]:
    """The current stream and the changes of the batch, None for no change. Raises Problem to refuse it."""
    request, batch = prepared.request, prepared.batch
    if raw is None:  # open_stream() detects a run id that another project has just taken
        registration.check_deleted(connection, request)
    else:
        registration.check_owner(connection, request)
    current = prepared.cached is not None and prepared.cached.raw == raw
    if prepared.cached is not None and current:
        stream = prepared.cached
    elif raw is not None:
        stream = _load(connection, raw)
    else:
        stream = CachedStream(None, StreamState(request.run, request.stream, last_seen=prepared.now))
    if stream.state.acknowledged != request.offset:
        conflict = _offset_conflict(request, stream.state.acknowledged)
        if isinstance(conflict, Exception):
            raise conflict
        return stream, None
    if request.offset == request.end:
        return stream, None
    validation.check_extent(batch, len(request.body), request.offset, request.end)
    if raw is None:
        registration.check_opening(connection, request, batch, quota)
    elif stream.state.schema is None:
        registration.check_introduction(connection, request, batch, quota)
    change = prepared.change if current else None
    change = change or stream_update.decide(stream, batch, request.end, prepared.now)
    _check_schemas(connection, stream.state, change.schemas)
    return stream, change


def _offset_conflict(request: IngestRequest, committed: int) -> Answer:
    """The answer to a batch that does not begin at the committed offset: that offset, or a 409 problem."""
    if request.end <= committed:
        return committed
    detail = f"the batch covers offset {request.offset} to {request.end}; continue at the committed offset {committed}"
    return Problem(409, detail, offset=committed)


def _load(connection: Connection, raw: Raw) -> CachedStream:
    """Parses a stream's row, and loads its schema and its postponed rows."""
    state = streams.parse_row(connection, raw)
    if state.schema is None:  # before its first hello
        return CachedStream(raw, state)
    body = streams.schema(connection, state.run, state.id, state.schema)
    schema = msgspec.msgpack.decode(body, type=frames.Schema)
    return CachedStream(raw, state, schema, postponed=_postponed(connection, state, schema))


def _postponed(connection: Connection, state: StreamState, schema: frames.Schema) -> Stretch | None:
    """Reads the stored rows that wait for their verdicts, up to the first that is damaged: the stream goes on."""
    if state.postponed_from is None:
        return None
    stretch = Stretch(schema)
    try:
        for view in views(InTransaction(connection), state.run, state.id, state.postponed_from, state.last_step):
            stretch.blocks.append(view)
            stretch.rows += len(view)
    except DatabaseError:  # the transaction is lost
        raise
    except Exception as error:  # noqa: BLE001 - what unpacks values raises many kinds for damaged ones
        first = stretch.blocks[-1].steps[-1] + 1 if stretch.blocks else state.postponed_from
        log.warning("rows of run %s, stream %s, from step %s are not judged: %s", state.run, state.id, first, error)
    return stretch if stretch.rows else None


def _open_stream(connection: Connection, stream: CachedStream, prepared: PreparedBatch) -> CachedStream:
    """Creates the missing rows of a stream and its run, and returns the stream."""
    if stream.raw is not None:
        registration.introduce(connection, prepared.request, prepared.batch, prepared.now)
        return stream
    request = registration.open_stream(connection, prepared.request, prepared.batch, prepared.now)
    raw = streams.select_for_update(connection, request.run, request.stream)
    assert raw is not None
    return _load(connection, raw)


def _check_schemas(connection: Connection, state: StreamState, schemas: Mapping[str, frames.Schema]) -> None:
    """Raises a 422 problem where a stream would have too many schemas."""
    if not schemas:
        return
    count, size = streams.schema_sizes(connection, state.run, state.id)
    if count + len(schemas) > MAX_SCHEMAS or size > MAX_SCHEMA_BYTES:
        stored = f"the stream has {count} schemas of {size} bytes"
        detail = f"{stored} and the batch adds {len(schemas)} more; log a fixed set of names"
        raise limits.over("schemas", 422, detail, most=MAX_SCHEMAS)


def _write_heartbeat(connection: Connection, stream: CachedStream, prepared: PreparedBatch) -> CachedStream | None:
    """Stores that the shipper is alive, and what it reports of the writer."""
    if stream.raw is None:
        return None
    reported = stream_update.writer_state(stream.state, prepared.batch)
    state = stream.state._replace(last_seen=prepared.now, **reported)
    raw = streams.update_progress(connection, stream.state, stream.raw, state)
    return replace(stream, raw=raw, state=state)


def _write_change(connection: Connection, stream: CachedStream, change: StreamUpdate, now: int) -> CachedStream | None:
    """Writes the changes of a stream whose row is locked.

    Returns:
        The stream after the changes; None where its row has to be read again.
    """
    state = stream.state
    for schema_id, schema in change.schemas.items():
        streams.add_schema(connection, state.run, state.id, schema_id, msgspec.msgpack.encode(schema))
    streams.add_chunks(connection, change.chunks)
    streams.add_events(connection, change.events)
    put_findings(connection, state.run, state.id, change.findings, now)
    assert stream.raw is not None
    after = state._replace(**change.progress)
    raw = streams.update_progress(connection, state, stream.raw, after)
    self_metrics.count_faults(change.faults)
    if change.dropped:
        self_metrics.limited.labels("events").inc(change.dropped)
    if change.identity:
        streams.put(connection, state.run, state.id, change.identity)
        return None
    rows_at = now if change.chunks else stream.rows_at
    return CachedStream(raw, after, change.schema, stream.decoded, change.postponed, rows_at)
