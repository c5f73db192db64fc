"""Whether a batch can be what it says, before the database is asked. A refusal names the item: one is lost, not all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from ammeter.redaction import Redactor
from ammeter.wire.frames import PROTOCOL, Batch, Block, Bye, Event, Hello, Item, Lost, Schema
from ammeter_server.http import limits
from ammeter_server.http.problems import Problem

MAX_ITEMS = 10_000
"""Each is judged while its database transaction is open: so many take less than a second."""

MAX_COLUMNS = 1_000_000
MAX_TENSORS = 150_000
MAX_SCALARS = 1_000
COUNTED_FIELDS = ("scalars", "stats", "tensors")
MAX_NAME_CHARS = 1_024
"""Characters of a tensor's, scalar's, event's or run's name."""

MAX_MESSAGE = 65_536
"""Characters of a goodbye's message."""

MAX_SAID_BYTES = 256 * 1024
"""Bytes of what a run may say about itself in one place: its config, an event's data."""

MAX_SAID_IN_BATCH = 2 * 2**20
"""Bytes of all that together. An empty list takes one byte on the way and 64 here: 16 MiB of them took 1.3 GB."""

END_OF_TIME = 2**63

ROW_BYTES = 128
"""Of a row in the journal beside its values: 72 with the longest numbers, and room for a later version."""

FRAME_BYTES = 256
"""Of any other frame in the journal, beyond twice what it takes in the body: 20, and room for a later version."""

SPARE_BYTES = 64 * 1024
"""Of a batch: an older shipper leaves out what it does not know in the frames of a newer agent."""

MAX_GAP_BYTES = 2**50
"""Of all gaps of a batch: what a year of rows of 100,000 columns, a hundred a second, would take. Journals hold 512 MiB
and may have deleted all that came before."""


class _Envelope(msgspec.Struct):
    """A batch whose items are not looked into yet."""

    items: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_ITEMS)] = []
    gaps: Annotated[list[Lost], msgspec.Meta(max_length=MAX_ITEMS)] = []
    alive: bool = True
    backlog: int = 0
    protocol: int = PROTOCOL


class _Names(msgspec.Struct):
    """How many columns a hello has, none of them looked into yet."""

    scalars: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_SCALARS)] = []
    stats: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_SCALARS)] = []
    tensors: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_TENSORS)] = []


class _Said(msgspec.Struct):
    """The parts of an item in which a run says what it likes, not looked into yet."""

    kind: str = ""
    schema: _Names | str = ""
    data: msgspec.Raw = msgspec.Raw()
    config: msgspec.Raw = msgspec.Raw()
    tags: msgspec.Raw = msgspec.Raw()
    environment: msgspec.Raw = msgspec.Raw()

    @property
    def size(self) -> int:
        """Bytes of them; a block's data are packed, and limited where they are unpacked."""
        if self.kind == "block":
            return 0
        return sum(memoryview(part).nbytes for part in (self.data, self.config, self.tags, self.environment))


class _Beyond(Exception):
    """An item is beyond a limit, which has a name."""

    def __init__(self, limit: str, detail: str) -> None:
        super().__init__(detail)
        self.limit = limit


_UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError, OverflowError)
_envelope = msgspec.msgpack.Decoder(_Envelope)
_said = msgspec.msgpack.Decoder(_Said)
_redactor = Redactor(remembers=False)
_item: msgspec.msgpack.Decoder[Item] = msgspec.msgpack.Decoder(Item)


def decoded(body: bytes, now: int = END_OF_TIME) -> Batch:
    """The batch in a body. Raises a 400 problem for what is none, 422 with the item where one item is wrong.

    now: when it came, in ns. Nothing is made of a body before its parts were found small enough: what is refused costs
    next to no memory.
    """
    try:
        envelope = _envelope.decode(body)
    except _UNREADABLE as error:
        if "length <=" in str(error):
            raise limits.over("items", 413, f"the batch has more than {MAX_ITEMS} items or gaps: split it") from error
        raise Problem(400, f"the body is no batch: {error}") from error
    if envelope.protocol != PROTOCOL:
        raise Problem(
            400, f"the batch speaks protocol {envelope.protocol}; this collector speaks {PROTOCOL}: update one"
        )
    said = sum(_weighed(index, raw) for index, raw in enumerate(envelope.items))
    if said > MAX_SAID_IN_BATCH:
        raise limits.over(
            "said", 413, f"config and data of the items take {said} bytes; the limit is {MAX_SAID_IN_BATCH}"
        )
    items = [_clean(_begun(_item_of(index, raw), now)) for index, raw in enumerate(envelope.items)]
    return Batch(items, envelope.gaps, envelope.alive, envelope.backlog, envelope.protocol)


def check(batch: Batch, run: str, stream: str, offset: int, end: int, max_unpacked: int) -> None:
    """Raises a problem for a batch that cannot be right, whatever the stream holds already."""
    if not 0 <= batch.backlog < END_OF_TIME:
        raise Problem(422, f"backlog is {batch.backlog}; use the bytes of journal behind the batch")
    unpacked = sum(_unpacked(item) for item in batch.items if isinstance(item, Block))
    if unpacked > max_unpacked:
        raise limits.over(
            "unpacked", 413, f"the blocks unpack to {unpacked} bytes; the limit is {max_unpacked}: split them"
        )
    if offset == end and (batch.items or batch.gaps):
        raise Problem(422, f"the batch has items or gaps, but its offset and end are both {offset}")
    if offset != end and not (batch.items or batch.gaps):
        raise Problem(422, f"the batch says offset {offset} to {end} and holds neither items nor gaps")
    _check_gaps(batch.gaps, offset, end)
    for index, item in enumerate(batch.items):
        try:
            wrong = _wrong(item, run, stream)
        except _Beyond as beyond:
            raise limits.over(beyond.limit, 422, f"item {index}: {beyond}", item=index) from None
        if wrong:
            raise Problem(422, f"item {index}: {wrong}", item=index)


def check_extent(batch: Batch, body_bytes: int, offset: int, end: int) -> None:
    """Raises a 422 problem where the batch claims more of the journal than what it holds and declares lost can take.

    Rows are packed, so their number counts and not their bytes; all other frames are in the body as in the journal.
    """
    gaps = sum(gap.end - gap.begin for gap in batch.gaps)
    if gaps > MAX_GAP_BYTES:
        said = f"the gaps are {gaps} bytes of journal together; the limit is {MAX_GAP_BYTES}"
        raise limits.over("gap", 422, said, most=MAX_GAP_BYTES)
    rows = sum(block.rows * (ROW_BYTES + 4 * block.columns) for block in batch.items if isinstance(block, Block))
    most = gaps + rows + 2 * body_bytes + FRAME_BYTES * len(batch.items) + SPARE_BYTES
    if end - offset > most:
        said = f"offset {offset} to {end} is {end - offset} bytes of journal; what the batch holds and declares lost"
        raise limits.over("extent", 422, f"{said} takes {most} at most", most=most)


def _weighed(index: int, raw: msgspec.Raw) -> int:
    """Bytes of what an item says freely."""
    try:
        part = _said.decode(raw)
    except _UNREADABLE as error:
        said = f"item {index} is no item: {error}"
        if "length <=" in str(error):
            limit = str(error).rpartition("$.schema.")[2].strip("` ")
            raise limits.over(limit if limit in COUNTED_FIELDS else "columns", 422, said, item=index) from error
        raise Problem(422, said, item=index) from error
    if part.size > MAX_SAID_BYTES:
        what = "data" if part.kind == "event" else "config, tags and environment"
        wrong = f"its {what} take {part.size} bytes; the limit is {MAX_SAID_BYTES}"
        raise limits.over("said", 422, f"item {index}: {wrong}", item=index)
    return part.size


def _item_of(index: int, raw: msgspec.Raw) -> Item:
    try:
        return _item.decode(raw)
    except _UNREADABLE as error:
        raise Problem(422, f"item {index} is no item: {error}", item=index) from error


def _begun(item: Item, now: int) -> Item:
    """A process has begun before it is heard of. Where its clock is ahead, its run would stand above all later ones."""
    if isinstance(item, Hello) and now < item.started < END_OF_TIME:
        return msgspec.structs.replace(item, started=now)
    return item


def _clean(item: Item) -> Item:
    """Without secrets: an older agent knows fewer of them. Names of columns stay, for blocks are packed by them."""
    if isinstance(item, Hello):
        return _redactor.hello(item, columns=False)
    return _redactor.frame(item) if isinstance(item, Event | Bye) else item


def _unpacked(block: Block) -> int:
    return max(block.rows, 0) * (16 + 4 * max(block.columns, 0))


def _check_gaps(gaps: Sequence[Lost], offset: int, end: int) -> None:
    behind = offset
    for gap in sorted(gaps, key=lambda gap: gap.begin):
        if not (behind <= gap.begin < gap.end <= end):
            raise Problem(
                422, f"the gap {gap.begin} to {gap.end} is empty, overlaps another, or lies outside {offset} to {end}"
            )
        if _wrong_loss(gap):
            raise Problem(422, f"the gap {gap.begin} to {gap.end}: {_wrong_loss(gap)}")
        behind = gap.end


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
    if len(bye.message) > MAX_MESSAGE or len(bye.ended_by) > MAX_NAME_CHARS:
        return f"its message has {len(bye.message)} characters, its ended_by {len(bye.ended_by)}"
    return "" if 0 <= bye.memory_limit < END_OF_TIME else f"a memory limit of {bye.memory_limit} bytes cannot be"


def _wrong_hello(hello: Hello, run: str, stream: str) -> str:
    if (hello.run, hello.stream) != (run, stream):
        said = f"run {hello.run[:80]!r}, stream {hello.stream[:80]!r}"
        return f"the hello is of {said}; the request names {run}, {stream}"
    if not 0 <= hello.rank < 2**31 or not 0 < hello.world_size < 2**31 or not 0 <= hello.pid < END_OF_TIME:
        return f"rank {hello.rank} of {hello.world_size} (pid {hello.pid}) cannot be"
    if not 0 <= hello.started < END_OF_TIME:
        return f"started is {hello.started}; use nanoseconds since 1970"
    if max(len(hello.name), len(hello.project), len(hello.host)) > MAX_NAME_CHARS:
        raise _Beyond("names", f"name, project or host has more than {MAX_NAME_CHARS} characters")
    return _wrong_schema(hello.schema)


def _wrong_schema(schema: Schema) -> str:
    if schema.width > MAX_COLUMNS:
        raise _Beyond("columns", f"the schema has {schema.width} columns; the limit is {MAX_COLUMNS}")
    of_tensors = (said for tensor in schema.tensors for said in (tensor.name, tensor.dtype))
    names = [*schema.scalars, *schema.stats, *of_tensors]
    if any(len(name) > MAX_NAME_CHARS for name in names):
        raise _Beyond("names", f"a name in the schema has more than {MAX_NAME_CHARS} characters")
    if len(set(schema.scalars)) != len(schema.scalars) or len(set(schema.stats)) != len(schema.stats):
        return "a column of the schema stands there twice"
    for tensor in schema.tensors:
        if len(tensor.shape) > 64 or any(extent < 0 for extent in tensor.shape) or tensor.numel >= END_OF_TIME:
            return f"tensor {tensor.name[:100]!r} has an impossible shape"
    if sum(tensor.numel for tensor in schema.tensors) >= END_OF_TIME:
        return "its tensors have more elements than any machine holds"
    return ""


def _wrong_event(event: Event) -> str:
    if len(event.name) > MAX_NAME_CHARS:
        raise _Beyond("names", f"an event's name has {len(event.name)} characters; use 1 to {MAX_NAME_CHARS}")
    if not event.name:
        return "an event has no name"
    return _wrong_moment(event.step, event.time)


def _wrong_loss(lost: Lost) -> str:
    counts = (lost.steps, lost.events, lost.begin, lost.end)
    if not all(0 <= count < END_OF_TIME for count in counts) or not 0 < len(lost.reason) <= MAX_NAME_CHARS:
        return f"a loss of {lost.steps} steps and {lost.events} events by {lost.reason[:100]!r} cannot be"
    return ""


def _wrong_moment(step: int, time: int) -> str:
    if not -1 <= step < END_OF_TIME or not 0 <= time < END_OF_TIME:
        return f"step {step} at time {time} cannot be; steps count from 0, times are nanoseconds since 1970"
    return ""
