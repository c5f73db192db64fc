"""Applies a checked batch to its stream, inside the stream's transaction: rows, events, verdicts, counters, offset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ammeter import block, verdicts, wire
from ammeter.verdicts.finding import Finding
from ammeter_server import meters, progress
from ammeter_server.plain import plain, text
from ammeter_server.problems import Problem
from ammeter_server.reading import Read, read
from ammeter_server.store import Connection, Row, streams

MAX_SCHEMAS = 256
"""Schemas of one stream: it gets another whenever run.log brings a new name."""


def append(connection: Connection, row: Row[Any], batch: wire.Batch, end: int, now: int) -> bool:
    """Stores a batch that begins at the row's offset. Returns whether the judge has something new to look at."""
    schema = schema_of(connection, row)
    found = read(batch.items, schema, -1 if row.last_step is None else row.last_step, row.bye_reason is not None)
    _store_schemas(connection, row, found)
    streams.add_chunks(connection, [_chunk(row, *each, now) for each in found.chunks])
    streams.add_events(connection, [_event(row, number, each) for number, each in enumerate(found.events, row.events)])
    views = [stretch.view() for stretch in found.stretches if stretch.rows or stretch.frames]
    judged, findings = judge_views(connection, row, views, now)
    awaited = findings or found.bye is not None or (found.hello is not None and schema is None)
    values = _heard(batch, end, now) | _counted(row, views, [*found.losses, *batch.gaps]) | _said(row, found) | judged
    streams.put(connection, row.run, row.id, values | {"version": row.version + awaited})
    meters.ingest_values.inc(sum(view.values.size for view in views))
    return awaited


def schema_of(connection: Connection, row: Row[Any]) -> wire.Schema | None:
    """The schema in force at the stream's end; None before its first hello."""
    if row.schema is None:
        return None
    return msgspec.msgpack.decode(streams.schema(connection, row.run, row.id, row.schema), type=wire.Schema)


def judge_views(
    connection: Connection, row: Row[Any], views: Iterable[block.View], now: int
) -> tuple[dict[str, Any], bool]:
    """Runs the verdicts over the views and stores what they conclude.

    Returns the stream's values that changed, and whether any finding did.
    """
    states = msgspec.msgpack.decode(row.states, type=dict[str, bytes])
    faults, findings = dict(row.faults), dict[str, Finding]()
    for view in views:
        judged = verdicts.judge(states, view)
        states = judged.states
        faults |= judged.faults
        findings |= {finding.verdict: finding for finding in judged.findings}
        for verdict in judged.faults:
            meters.verdict_faults.labels(verdict).inc()
    for verdict, finding in findings.items():
        streams.put_finding(connection, row.run, row.id, verdict, plain(msgspec.structs.asdict(finding)), now)
    return {"states": msgspec.msgpack.encode(states), "faults": faults}, bool(findings)


def _store_schemas(connection: Connection, row: Row[Any], found: Read) -> None:
    if not found.schemas:
        return
    if streams.count_schemas(connection, row.run, row.id) + len(found.schemas) > MAX_SCHEMAS:
        meters.limited.labels("schemas").inc()
        raise Problem(422, f"the stream has more than {MAX_SCHEMAS} schemas; log a fixed set of names")
    for schema_id, schema in found.schemas.items():
        streams.add_schema(connection, row.run, row.id, schema_id, msgspec.msgpack.encode(schema))


def _chunk(row: Row[Any], packed: wire.Block, first_time: int, last_time: int, now: int) -> dict[str, Any]:
    return {
        "run": row.run,
        "stream": row.id,
        "first_step": packed.first_step,
        "last_step": packed.last_step,
        "first_time": first_time,
        "last_time": last_time,
        "rows": packed.rows,
        "columns": packed.columns,
        "schema": packed.schema,
        "received": now,
        "data": packed.data,
    }


def _event(row: Row[Any], number: int, event: wire.Event) -> dict[str, Any]:
    place = {"run": row.run, "stream": row.id, "number": number}
    return place | {"name": text(event.name), "step": event.step, "time": event.time, "data": event.data}


def _heard(batch: wire.Batch, end: int, now: int) -> dict[str, Any]:
    return {"acknowledged": end, "heard": now, "alive": batch.alive, "backlog": batch.backlog}


def _counted(row: Row[Any], views: Iterable[block.View], losses: list[wire.Lost]) -> dict[str, Any]:
    counters: Mapping[str, Any] = row.counters
    latest, precision = row.latest, row.precision
    for view in views:
        counters = progress.advance(counters, view)
        latest = progress.latest(latest, view)
        precision = progress.precision(precision, view)
    return {
        "counters": counters,
        "latest": latest,
        "precision": text(precision) if precision else None,
        "lost": progress.lost(row.lost, losses),
    }


def _said(row: Row[Any], found: Read) -> dict[str, Any]:
    """What hello, rows, events and bye say about the stream itself."""
    said: dict[str, Any] = {"events": row.events + len(found.events)}
    if found.chunks:
        said["rows"] = row.rows + sum(packed.rows for packed, _, _ in found.chunks)
        said["last_step"] = found.last_step
        said["last_step_time"] = found.chunks[-1][2]
    if found.hello is not None:
        hello = found.hello
        said |= {"role": hello.role, "rank": hello.rank, "world_size": hello.world_size, "host": text(hello.host)}
        said |= {"pid": hello.pid, "started": hello.started, "schema": found.stretches[-1].schema_id}
    if found.bye is not None:
        bye = msgspec.structs.asdict(found.bye)
        said |= {"bye": bye, "bye_reason": found.bye.reason}
    return said
