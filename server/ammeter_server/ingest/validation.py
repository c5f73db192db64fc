"""Decodes a batch and checks it without the database. A refusal names the item, so that the shipper omits only that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from ammeter.redaction import Redactor
from ammeter.wire.frames import PROTOCOL, Batch, Block, Bye, Event, Hello, Item, Lost, Schema
from ammeter_server.http import limits
from ammeter_server.http.problems import Problem

MAX_ITEMS = 10_000
"""Of a batch. They are evaluated in one database transaction, in less than a second."""

MAX_COLUMNS = 1_000_000
MAX_TENSORS = 150_000
MAX_SCALARS = 1_000
COUNTED_FIELDS = ("scalars", "stats", "tensors")
MAX_NAME_CHARS = 1_024
"""Characters of a tensor's, scalar's, event's or run's name."""

MAX_MESSAGE_CHARS = 65_536
"""Of the message in a final record."""

MAX_FREE_BYTES = 256 * 1024
"""Of the free content of one item: a run's config, tags and environment, or an event's data."""

MAX_BATCH_FREE_BYTES = 2 * 2**20
"""Of the free content of all items. An empty list takes one byte in the body and 64 in memory: 16 MiB took 1.3 GB."""

MAX_INT64 = 2**63
"""The first number above the range of the database."""

ROW_BYTES = 128
"""Of a row in the journal without its values: 72 with the longest numbers, and a reserve for later versions."""

FRAME_BYTES = 256
"""Of any other frame in the journal beyond twice its size in the body: 20, and a reserve for later versions."""

SPARE_BYTES = 64 * 1024
"""Of a batch: an older shipper omits unknown content from the frames of a newer agent."""

MAX_GAP_BYTES = 2**50
"""Of all gaps of a batch: a year of rows of 100,000 columns, a hundred a second. Journals have 512 MiB and may have
deleted all earlier content."""


class _Envelope(msgspec.Struct):
    """A batch whose items are not decoded yet."""

    items: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_ITEMS)] = []
    gaps: Annotated[list[Lost], msgspec.Meta(max_length=MAX_ITEMS)] = []
    alive: bool = True
    backlog: int = 0
    protocol: int = PROTOCOL
    completed_step: int = -1
    completed_time: int = 0


class _Names(msgspec.Struct):
    """The columns of a hello, counted and not decoded yet."""

    scalars: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_SCALARS)] = []
    stats: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_SCALARS)] = []
    tensors: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_TENSORS)] = []


class _FreeContent(msgspec.Struct):
    """The parts of an item that users fill freely, not decoded yet."""

    kind: str = ""
    schema: _Names | str = ""
    data: msgspec.Raw = msgspec.Raw()
    config: msgspec.Raw = msgspec.Raw()
    tags: msgspec.Raw = msgspec.Raw()
    environment: msgspec.Raw = msgspec.Raw()

    @property
    def size(self) -> int:
        """Bytes of these parts. Those of a block are limited when they are unpacked."""
        if self.kind == "block":
            return 0
        return sum(memoryview(part).nbytes for part in (self.data, self.config, self.tags, self.environment))


class _LimitError(Exception):
    """An item exceeds a limit, which has a name."""

    def __init__(self, limit: str, detail: str) -> None:
        super().__init__(detail)
        self.limit = limit


_UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError, OverflowError)
_envelope = msgspec.msgpack.Decoder(_Envelope)
_free_content = msgspec.msgpack.Decoder(_FreeContent)
_redactor = Redactor(remembers=False)
_item: msgspec.msgpack.Decoder[Item] = msgspec.msgpack.Decoder(Item)


def decoded(body: bytes, now: int = MAX_INT64) -> Batch:
    """Decodes a body, after its parts are checked for size: a refused body uses nearly no memory.

    Args:
        now: The time of its arrival, in ns.

    Raises:
        Problem: 400 for a body that is no batch, 422 with the item if an item is invalid, 413 if it is too large.
    """
    try:
        envelope = _envelope.decode(body)
    except _UNREADABLE as error:
        if "length <=" in str(error):
            raise limits.over("items", 413, f"the batch has more than {MAX_ITEMS} items or gaps: split it") from error
        raise Problem(400, f"the body is no batch: {error}") from error
    if envelope.protocol != PROTOCOL:
        raise Problem(400, f"the batch has protocol {envelope.protocol}, this collector {PROTOCOL}; update one of them")
    free = sum(_free_bytes(index, raw) for index, raw in enumerate(envelope.items))
    if free > MAX_BATCH_FREE_BYTES:
        raise limits.over(
            "said", 413, f"config and data of the items take {free} bytes; the limit is {MAX_BATCH_FREE_BYTES}"
        )
    items = [_redact(_limit_start(_item_of(index, raw), now)) for index, raw in enumerate(envelope.items)]
    return Batch(
        *(items, envelope.gaps, envelope.alive, envelope.backlog, envelope.protocol),
        *(envelope.completed_step, min(envelope.completed_time, now)),
    )


def check(batch: Batch, run: str, stream: str, offset: int, end: int, max_unpacked: int) -> None:
    """Raises a problem for a batch that is invalid for every state of the stream."""
    if not 0 <= batch.backlog < MAX_INT64:
        raise Problem(422, f"backlog is {batch.backlog}; use the bytes of journal after the batch")
    if not (-1 <= batch.completed_step < MAX_INT64 and 0 <= batch.completed_time):
        completed = f"completed_step is {batch.completed_step}, completed_time is {batch.completed_time}"
        raise Problem(422, f"{completed}; use the newest completed step and its time in ns since 1970, or -1 and 0")
    unpacked = sum(_unpacked(item) for item in batch.items if isinstance(item, Block))
    if unpacked > max_unpacked:
        raise limits.over(
            "unpacked", 413, f"the blocks unpack to {unpacked} bytes; the limit is {max_unpacked}: split them"
        )
    if offset == end and (batch.items or batch.gaps):
        raise Problem(422, f"the batch has items or gaps, but its offset and end are both {offset}")
    if offset != end and not (batch.items or batch.gaps):
        raise Problem(422, f"the batch covers offset {offset} to {end} and has neither items nor gaps")
    _check_gaps(batch.gaps, offset, end)
    for index, item in enumerate(batch.items):
        try:
            wrong = _wrong(item, run, stream)
        except _LimitError as error:
            raise limits.over(error.limit, 422, f"item {index}: {error}", item=index) from None
        if wrong:
            raise Problem(422, f"item {index}: {wrong}", item=index)


def check_extent(batch: Batch, body_bytes: int, offset: int, end: int) -> None:
    """Raises a 422 problem where the batch claims more of the journal than its content and its gaps can take.

    Rows are packed, so their number counts and not their bytes; all other frames are in the body as in the journal.
    """
    gaps = sum(gap.end - gap.begin for gap in batch.gaps)
    if gaps > MAX_GAP_BYTES:
        detail = f"the gaps are {gaps} bytes of journal together; the limit is {MAX_GAP_BYTES}"
        raise limits.over("gap", 422, detail, most=MAX_GAP_BYTES)
    rows = sum(block.rows * (ROW_BYTES + 4 * block.columns) for block in batch.items if isinstance(block, Block))
    most = gaps + rows + 2 * body_bytes + FRAME_BYTES * len(batch.items) + SPARE_BYTES
    if end - offset > most:
        claimed = f"offset {offset} to {end} is {end - offset} bytes of journal"
        detail = f"{claimed}; the content and the gaps of the batch take {most} at most"
        raise limits.over("extent", 422, detail, most=most)


def _free_bytes(index: int, raw: msgspec.Raw) -> int:
    """Bytes of the free content of an item."""
    try:
        part = _free_content.decode(raw)
    except _UNREADABLE as error:
        detail = f"item {index} is no item: {error}"
        if "length <=" in str(error):
            limit = str(error).rpartition("$.schema.")[2].strip("` ")
            raise limits.over(limit if limit in COUNTED_FIELDS else "columns", 422, detail, item=index) from error
        raise Problem(422, detail, item=index) from error
    if part.size > MAX_FREE_BYTES:
        parts = "data" if part.kind == "event" else "config, tags and environment"
        wrong = f"its {parts} take {part.size} bytes; the limit is {MAX_FREE_BYTES}"
        raise limits.over("said", 422, f"item {index}: {wrong}", item=index)
    return part.size


def _item_of(index: int, raw: msgspec.Raw) -> Item:
    try:
        return _item.decode(raw)
    except _UNREADABLE as error:
        raise Problem(422, f"item {index} is no item: {error}", item=index) from error


def _limit_start(item: Item, now: int) -> Item:
    """Limits the start of a process to now. With a clock ahead, its run would be listed above all later ones."""
    if isinstance(item, Hello) and now < item.started < MAX_INT64:
        return msgspec.structs.replace(item, started=now)
    return item


def _redact(item: Item) -> Item:
    """Removes secrets, of which an older agent knows fewer. Names of columns stay: blocks are packed by them."""
    if isinstance(item, Hello):
        return _redactor.hello(item, columns=False)
    return _redactor.frame(item) if isinstance(item, Event | Bye) else item


def _unpacked(block: Block) -> int:
    return max(block.rows, 0) * (16 + 4 * max(block.columns, 0))


def _check_gaps(gaps: Sequence[Lost], offset: int, end: int) -> None:
    begin = offset
    for gap in sorted(gaps, key=lambda gap: gap.begin):
        if not (begin <= gap.begin < gap.end <= end):
            raise Problem(
                422, f"the gap {gap.begin} to {gap.end} is empty, overlaps another, or is outside {offset} to {end}"
            )
        if _wrong_loss(gap):
            raise Problem(422, f"the gap {gap.begin} to {gap.end}: {_wrong_loss(gap)}")
        begin = gap.end


def _wrong(item: Hello | Block | Event | Lost | Bye, run: str, stream: str) -> str:
    match item:
        case Hello():
            return _wrong_hello(item, run, stream)
        case Event():
            return _wrong_event(item)
        case Block():
            return "" if 0 <= item.first_step <= item.last_step else f"steps {item.first_step} to {item.last_step}"
        case Lost():
            return _wrong_loss(item)
        case Bye():
            return _wrong_moment(item.step, item.time) or _wrong_end(item)


def _wrong_end(bye: Bye) -> str:
    if len(bye.message) > MAX_MESSAGE_CHARS or len(bye.ended_by) > MAX_NAME_CHARS:
        return f"its message has {len(bye.message)} characters, its ended_by {len(bye.ended_by)}"
    return "" if 0 <= bye.memory_limit < MAX_INT64 else f"a memory limit of {bye.memory_limit} bytes is impossible"


def _wrong_hello(hello: Hello, run: str, stream: str) -> str:
    if (hello.run, hello.stream) != (run, stream):
        place = f"run {hello.run[:80]!r}, stream {hello.stream[:80]!r}"
        return f"the hello is of {place}; the request names {run}, {stream}"
    if not 0 <= hello.rank < 2**31 or not 0 < hello.world_size < 2**31 or not 0 <= hello.pid < MAX_INT64:
        return f"rank {hello.rank} of {hello.world_size} (pid {hello.pid}) is impossible"
    if not 0 <= hello.started < MAX_INT64:
        return f"started is {hello.started}; use nanoseconds since 1970"
    if max(len(hello.name), len(hello.project), len(hello.host)) > MAX_NAME_CHARS:
        raise _LimitError("names", f"name, project or host has more than {MAX_NAME_CHARS} characters")
    return _wrong_schema(hello.schema)


def _wrong_schema(schema: Schema) -> str:
    if schema.width > MAX_COLUMNS:
        raise _LimitError("columns", f"the schema has {schema.width} columns; the limit is {MAX_COLUMNS}")
    tensor_texts = (text for tensor in schema.tensors for text in (tensor.name, tensor.dtype))
    names = [*schema.scalars, *schema.stats, *tensor_texts]
    if any(len(name) > MAX_NAME_CHARS for name in names):
        raise _LimitError("names", f"a name in the schema has more than {MAX_NAME_CHARS} characters")
    if len(set(schema.scalars)) != len(schema.scalars) or len(set(schema.stats)) != len(schema.stats):
        return "the schema has a column twice"
    for tensor in schema.tensors:
        if len(tensor.shape) > 64 or any(extent < 0 for extent in tensor.shape) or tensor.numel >= MAX_INT64:
            return f"tensor {tensor.name[:100]!r} has an impossible shape"
    if sum(tensor.numel for tensor in schema.tensors) >= MAX_INT64:
        return "its tensors have more elements than 64 bits can count"
    return ""


def _wrong_event(event: Event) -> str:
    if len(event.name) > MAX_NAME_CHARS:
        raise _LimitError("names", f"an event's name has {len(event.name)} characters; use 1 to {MAX_NAME_CHARS}")
    if not event.name:
        return "an event has no name"
    return _wrong_moment(event.step, event.time)


def _wrong_loss(lost: Lost) -> str:
    counts = (lost.steps, lost.events, lost.begin, lost.end)
    if not all(0 <= count < MAX_INT64 for count in counts) or not 0 < len(lost.reason) <= MAX_NAME_CHARS:
        return f"a loss of {lost.steps} steps and {lost.events} events by {lost.reason[:100]!r} is impossible"
    return ""


def _wrong_moment(step: int, time: int) -> str:
    if not -1 <= step < MAX_INT64 or not 0 <= time < MAX_INT64:
        return f"step {step} at time {time} is impossible; steps count from 0, times are nanoseconds since 1970"
    return ""
