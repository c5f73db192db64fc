"""Computes the changes that a batch makes to its stream.

It uses no database, so it holds no lock. Its result is valid while the stream's row has not changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ammeter.counters import rows as rows_with
from ammeter.counters import stream as stream_counters
from ammeter.verdicts.framework.finding import Finding
from ammeter.wire import columns, frames
from ammeter.wire.frames import Block, Event, Lost, Schema
from ammeter.wire.printable import storable
from ammeter_server.db.queries.streams import Raw, StreamState
from ammeter_server.db.step_tables import day_of
from ammeter_server.ingest.judgement import Judgement, judge_views
from ammeter_server.ingest.parsing import ParsedBatch, Stretch, parse

MAX_POSTPONED_ROWS = 64
MAX_POSTPONED_VALUES = 250_000
"""Rows of a stream, and their values, that may wait for their verdicts. With more rows in one view, a row is hardly
cheaper to judge."""

MAX_EVENTS = 1_000_000
"""Stored events of one stream. Further events are evaluated like all others, and counted as lost."""

EVENTS_CAP = "events-cap"


@dataclass(frozen=True)
class CachedStream:
    """A stream as this process has left it.

    Attributes:
        raw: The row as the driver returns it; None for a stream without a row.
        state: The parsed row.
        schema: The schema in force at the end of the stream.
        decoded: Verdict -> (its packed state, the decoded state).
        postponed: The rows from state.postponed_from on, which wait for their verdicts.
        rows_at: When this process has committed its newest rows, in ns; 0 if it has not.
    """

    raw: Raw | None
    state: StreamState
    schema: Schema | None = None
    decoded: dict[str, tuple[bytes, Any]] = field(default_factory=dict)
    postponed: Stretch | None = None
    rows_at: int = 0


@dataclass(frozen=True)
class StreamUpdate:
    """The changes that one batch makes to its stream.

    Attributes:
        progress: Columns of the stream that every batch writes.
        identity: Columns that hello and bye write.
        chunks: New rows of chunks.
        events: New rows of events.
        schemas: New schemas by id.
        findings: New findings by verdict.
        faults: Verdicts that failed.
        postponed: Rows that wait for their verdicts after the batch.
        schema: In force after the batch.
        wakes_judge: Whether the judge has to evaluate the run.
        values: The number of measured values.
        dropped: Events above MAX_EVENTS.
        losses: Records that the sender or the server has dropped.
    """

    progress: dict[str, Any]
    identity: dict[str, Any]
    chunks: list[dict[str, Any]]
    events: list[dict[str, Any]]
    schemas: dict[str, Schema]
    findings: Mapping[str, Finding]
    faults: Sequence[str]
    postponed: Stretch | None
    schema: Schema | None
    wakes_judge: bool
    values: int
    dropped: int = 0
    losses: Sequence[Lost] = ()


def decide(stream: CachedStream, batch: frames.Batch, end: int, now: int, delay: int = 0) -> StreamUpdate:
    """Computes the changes of a batch that begins at the stream's offset.

    Args:
        stream: As it is before the batch.
        batch: Decoded and checked.
        end: The stream's offset after it.
        now: In ns.
        delay: How long rows may wait for their verdicts, in ns. Events, final records and losses never do.

    Raises:
        Problem: 422: the batch is refused.
    """
    state = stream.state
    last_step = -1 if state.last_step is None else state.last_step
    parsed = parse(batch.items, stream.schema, last_step, state.bye_reason is not None, stream.postponed)
    room = max(0, MAX_EVENTS - state.events)
    stored, dropped = parsed.events[:room], len(parsed.events[room:])
    over_cap = [Lost(EVENTS_CAP, events=dropped)] if dropped else []
    losses = [*parsed.losses, *batch.gaps, *over_cap]
    is_frequent = 0 <= now - stream.rows_at < delay  # the next batch is likely to come in time
    waits = is_frequent and not losses and parsed.has_rows_only and _may_wait(parsed)
    judgement = _postponed(state, parsed) if waits else _judge(stream, parsed)
    begins = parsed.hello is not None and stream.schema is None
    wakes_judge = bool(judgement.findings) or parsed.bye is not None or begins
    return StreamUpdate(
        progress={
            "acknowledged": end,
            "last_seen": now,
            **writer_state(state, batch),
            **judgement.columns,
            **_position(state, parsed, len(stored)),
            "lost": stream_counters.add_losses(state.lost, losses) if losses else state.lost,
            "version": state.version + wakes_judge,
        },
        identity=_identity(parsed),
        chunks=[_chunk(state, *chunk, now) for chunk in parsed.chunks],
        events=[_event(state, number, event, now) for number, event in enumerate(stored, state.events)],
        schemas=parsed.schemas,
        findings=judgement.findings,
        faults=judgement.failed,
        postponed=parsed.stretches[0] if waits else None,
        schema=parsed.stretches[-1].schema if parsed.stretches else None,
        wakes_judge=wakes_judge,
        values=sum(packed.rows * packed.columns for packed, _, _ in parsed.chunks),
        dropped=dropped,
        losses=losses,
    )


def _may_wait(parsed: ParsedBatch) -> bool:
    """Whether the rows of a batch are few, and nothing is wrong in them."""
    stretch = parsed.stretches[0]
    is_small = stretch.rows <= min(MAX_POSTPONED_ROWS, MAX_POSTPONED_VALUES // stretch.schema.width)
    return is_small and not any(map(_is_bad, stretch.blocks[-len(parsed.chunks) :]))


def _is_bad(rows: columns.View) -> bool:
    """Whether rows have a skipped step, or a loss or gradients that are not finite."""
    skipped = rows_with.positive(rows.scalar("skipped"))
    bad = skipped, rows_with.nonfinite_losses(rows), rows_with.nonfinite_gradients(rows)
    return any(mask.any() for mask in bad)


def _judge(stream: CachedStream, parsed: ParsedBatch) -> Judgement:
    """Judges the rows that have waited and the batch."""
    views = [stretch.view() for stretch in parsed.stretches if stretch.rows or stretch.frames]
    return judge_views(stream.state, views, stream.decoded, parsed.hello.role if parsed.hello else None)


def _postponed(state: StreamState, parsed: ParsedBatch) -> Judgement:
    """The rows of the batch wait for their verdicts, after those that wait already."""
    first = parsed.chunks[0][0].first_step
    return Judgement({"postponed_from": first if state.postponed_from is None else state.postponed_from})


def writer_state(state: StreamState, batch: frames.Batch) -> dict[str, Any]:
    """The columns that every batch defines, heartbeats included."""
    reported = {"alive": batch.alive, "backlog": batch.backlog}
    if batch.completed_step > (-1 if state.completed_step is None else state.completed_step):
        reported |= {"completed_step": batch.completed_step, "completed_time": batch.completed_time}
    return reported


def _chunk(state: StreamState, packed: Block, first_time: int, last_time: int, now: int) -> dict[str, Any]:
    place = {"run": state.run, "stream": state.id, "first_step": packed.first_step, "day": day_of(now)}
    times = {"last_step": packed.last_step, "first_time": first_time, "last_time": last_time, "received": now}
    content = {"rows": packed.rows, "columns": packed.columns, "schema": packed.schema, "data": packed.data}
    return place | times | content


def _event(state: StreamState, number: int, event: Event, now: int) -> dict[str, Any]:
    place = {"run": state.run, "stream": state.id, "number": number, "day": day_of(now)}
    return place | {"name": storable(event.name), "step": event.step, "time": event.time, "data": event.data}


def _position(state: StreamState, parsed: ParsedBatch, events: int) -> dict[str, Any]:
    """The stream's new position. events: the number of newly stored events."""
    return {
        "events": state.events + events,
        "rows": state.rows + sum(packed.rows for packed, _, _ in parsed.chunks),
        "last_step": parsed.last_step if parsed.chunks else state.last_step,
        "last_step_time": parsed.chunks[-1][2] if parsed.chunks else state.last_step_time,
    }


def _identity(parsed: ParsedBatch) -> dict[str, Any]:
    """The columns that hello and bye define."""
    values: dict[str, Any] = {}
    if parsed.hello is not None:
        hello = parsed.hello
        values |= {"role": hello.role, "rank": hello.rank, "world_size": hello.world_size, "host": storable(hello.host)}
        values |= {"pid": hello.pid, "started": hello.started, "schema": parsed.stretches[-1].schema_id}
    if parsed.bye is not None:
        values |= {"bye": msgspec.structs.asdict(parsed.bye), "bye_reason": parsed.bye.reason}
    return values
