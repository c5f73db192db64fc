"""Computes the changes that a batch makes to its stream: checks and sorts the items, and runs the verdicts.

It uses no database, so it holds no lock. Its result is valid while the stream's row has not changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from ammeter import verdicts
from ammeter.counters import stream as stream_counters
from ammeter.verdicts.framework.finding import Finding, Judged
from ammeter.wire import columns, frames
from ammeter.wire.frames import Block, Bye, Event, Hello, Item, Lost, Schema
from ammeter.wire.printable import storable
from ammeter_server.db.queries.streams import Raw, StreamState
from ammeter_server.db.step_tables import day_of
from ammeter_server.http.problems import Problem
from ammeter_server.runs.latest_values import latest

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
    """

    raw: Raw | None
    state: StreamState
    schema: Schema | None = None
    decoded: dict[str, tuple[bytes, Any]] = field(default_factory=dict)


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
    findings: dict[str, Finding]
    faults: list[str]
    schema: Schema | None
    wakes_judge: bool
    values: int
    dropped: int = 0
    losses: Sequence[Lost] = ()


@dataclass(frozen=True)
class Judgement:
    """The result of the verdicts for new rows: their states, faults, findings and the verdicts that failed."""

    states: bytes
    faults: Mapping[str, str]
    findings: dict[str, Finding] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


@dataclass
class Stretch:
    """The items after a hello with a new schema: blocks, and other frames with the number of rows before each."""

    schema: Schema
    blocks: list[columns.View] = field(default_factory=list)
    frames: list[tuple[int, Hello | Event | Lost | Bye]] = field(default_factory=list)
    rows: int = 0
    schema_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.schema_id = self.schema.id  # a hash of the whole schema, computed once

    def view(self) -> columns.View:
        rows = self.blocks[0] if len(self.blocks) == 1 else columns.join(self.schema, self.blocks)
        return columns.View(self.schema, rows.steps, rows.times, rows.values, self.frames)


@dataclass
class ParsedBatch:
    """The items of a batch by kind. chunks: packed blocks with first and last time; schemas: new schemas by id."""

    stretches: list[Stretch] = field(default_factory=list)
    chunks: list[tuple[Block, int, int]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    losses: list[Lost] = field(default_factory=list)
    schemas: dict[str, Schema] = field(default_factory=dict)
    hello: Hello | None = None
    bye: Bye | None = None
    last_step: int = -1


def decide(stream: CachedStream, batch: frames.Batch, end: int, now: int) -> StreamUpdate:
    """Computes the changes of a batch that begins at the stream's offset. Raises a 422 problem to refuse it."""
    state = stream.state
    last_step = -1 if state.last_step is None else state.last_step
    parsed = parse(batch.items, stream.schema, last_step, state.bye_reason is not None)
    views = [stretch.view() for stretch in parsed.stretches if stretch.rows or stretch.frames]
    role = parsed.hello.role if parsed.hello else state.role
    judged = judge_views(state.states, state.faults, views if role == "rank" else (), stream.decoded)
    begins = parsed.hello is not None and stream.schema is None
    wakes_judge = bool(judged.findings) or parsed.bye is not None or begins
    room = max(0, MAX_EVENTS - state.events)
    stored, dropped = parsed.events[:room], len(parsed.events[room:])
    over_cap = [Lost(EVENTS_CAP, events=dropped)] if dropped else []
    losses = [*parsed.losses, *batch.gaps, *over_cap]
    verdict_columns = {"version": state.version + wakes_judge, "states": judged.states, "faults": judged.faults}
    contact = {"acknowledged": end, "last_seen": now, **writer_state(state, batch)}
    return StreamUpdate(
        progress=contact
        | _totals(state, views, losses, judged.findings)
        | _position(state, parsed, len(stored))
        | verdict_columns,
        identity=_identity(parsed),
        chunks=[_chunk(state, *chunk, now) for chunk in parsed.chunks],
        events=[_event(state, number, event, now) for number, event in enumerate(stored, state.events)],
        schemas=parsed.schemas,
        findings=judged.findings,
        faults=judged.failed,
        schema=parsed.stretches[-1].schema if parsed.stretches else None,
        wakes_judge=wakes_judge,
        values=sum(view.values.size for view in views),
        dropped=dropped,
        losses=losses,
    )


def writer_state(state: StreamState, batch: frames.Batch) -> dict[str, Any]:
    """The columns that every batch defines, heartbeats included."""
    reported = {"alive": batch.alive, "backlog": batch.backlog}
    if batch.completed_step > (-1 if state.completed_step is None else state.completed_step):
        reported |= {"completed_step": batch.completed_step, "completed_time": batch.completed_time}
    return reported


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


def parse(items: Sequence[Item], schema: Schema | None, last_step: int, ended: bool) -> ParsedBatch:
    """Checks and sorts the items of a batch.

    Args:
        items: In their order.
        schema: In force before the batch; None before the first hello.
        last_step: Of the stream's last row.
        ended: Whether the stream has its final record.

    Raises:
        Problem: 422 with the index of the first item that does not fit.
    """
    parsed = ParsedBatch(last_step=last_step)
    if schema is not None:
        parsed.stretches.append(Stretch(schema))
    for index, item in enumerate(items):
        wrong = "the stream already has its final record" if ended or parsed.bye else _add_item(parsed, item)
        if wrong:
            raise Problem(422, f"item {index}: {wrong}", item=index)
    return parsed


def _add_item(parsed: ParsedBatch, item: Item) -> str:
    """Adds one item. Returns the reason to refuse it, or an empty string."""
    if isinstance(item, Block):
        return _add_block(parsed, item)
    if isinstance(item, Hello):
        _add_hello(parsed, item)
    if not parsed.stretches:
        return f"a stream begins with a hello, this one with {type(item).__name__.lower()}"
    stretch = parsed.stretches[-1]
    stretch.frames.append((stretch.rows, item))
    if isinstance(item, Event):
        parsed.events.append(item)
    elif isinstance(item, Lost):
        parsed.losses.append(item)
    elif isinstance(item, Bye):
        parsed.bye = item
    return ""


def _add_hello(parsed: ParsedBatch, hello: Hello) -> None:
    parsed.hello = hello
    if not parsed.stretches or parsed.stretches[-1].schema != hello.schema:
        stretch = Stretch(hello.schema)
        parsed.stretches.append(stretch)
        parsed.schemas[stretch.schema_id] = hello.schema


def _add_block(parsed: ParsedBatch, packed: Block) -> str:
    stretch = parsed.stretches[-1] if parsed.stretches else None
    if stretch is None or packed.schema != stretch.schema_id:
        current = stretch.schema_id if stretch else "none"
        return f"the block has schema {packed.schema[:64]!r}; the schema of the last hello is {current}"
    try:
        view = columns.unpack(packed, stretch.schema)
    except (columns.BadBlock, ValueError, MemoryError) as error:
        return str(error)
    if packed.first_step <= parsed.last_step:
        return f"the block begins at step {packed.first_step}; the stream already has step {parsed.last_step}"
    if (packed.rows > 1 and np.any(np.diff(view.steps) <= 0)) or np.any(view.times < 0):
        return "the block's steps do not increase, or a time is before 1970"
    stretch.blocks.append(view)
    stretch.rows += len(view)
    parsed.last_step = packed.last_step
    parsed.chunks.append((packed, int(view.times[0]), int(view.times[-1])))
    return ""


def _chunk(state: StreamState, packed: Block, first_time: int, last_time: int, now: int) -> dict[str, Any]:
    place = {"run": state.run, "stream": state.id, "first_step": packed.first_step, "day": day_of(now)}
    times = {"last_step": packed.last_step, "first_time": first_time, "last_time": last_time, "received": now}
    content = {"rows": packed.rows, "columns": packed.columns, "schema": packed.schema, "data": packed.data}
    return place | times | content


def _event(state: StreamState, number: int, event: Event, now: int) -> dict[str, Any]:
    place = {"run": state.run, "stream": state.id, "number": number, "day": day_of(now)}
    return place | {"name": storable(event.name), "step": event.step, "time": event.time, "data": event.data}


def _totals(
    state: StreamState, views: Sequence[columns.View], losses: Sequence[Lost], reached: Iterable[str]
) -> dict[str, Any]:
    counters, values, precision = state.counters, state.latest, state.precision
    for view in views:
        counters = stream_counters.advance(counters, view)
        values = latest(values, view)
        precision = stream_counters.precision(precision, view)
    return {
        "counters": stream_counters.add_reached(counters, reached),
        "latest": values,
        "precision": precision if precision is state.precision else storable(precision or ""),
        "lost": stream_counters.add_losses(state.lost, losses) if losses else state.lost,
    }


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
