"""Checks the items of a batch against their stream and sorts them by kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ammeter.wire import columns
from ammeter.wire.frames import Block, Bye, Event, Hello, Item, Lost, Schema
from ammeter_server.http.problems import Problem


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


def read(items: Sequence[Item], schema: Schema | None, last_step: int, ended: bool) -> ParsedBatch:
    """Checks and sorts the items of a batch.

    Args:
        items: In their order.
        schema: In force before the batch; None before the first hello.
        last_step: Of the stream's last row.
        ended: Whether the stream has its final record.

    Raises:
        Problem: 422 with the index of the first item that does not fit.
    """
    found = ParsedBatch(last_step=last_step)
    if schema is not None:
        found.stretches.append(Stretch(schema))
    for index, item in enumerate(items):
        wrong = "" if not (ended or found.bye) else "the stream has said goodbye before it"
        wrong = wrong or _read_one(found, item)
        if wrong:
            raise Problem(422, f"item {index}: {wrong}", item=index)
    return found


def _read_one(found: ParsedBatch, item: Item) -> str:
    """Adds one item. Returns the reason to refuse it, or an empty string."""
    if isinstance(item, Block):
        return _read_block(found, item)
    if isinstance(item, Hello):
        _read_hello(found, item)
    if not found.stretches:
        return f"a stream begins with a hello, this one with {type(item).__name__.lower()}"
    stretch = found.stretches[-1]
    stretch.frames.append((stretch.rows, item))
    match item:
        case Event():
            found.events.append(item)
        case Lost():
            found.losses.append(item)
        case Bye():
            found.bye = item
    return ""


def _read_hello(found: ParsedBatch, hello: Hello) -> None:
    found.hello = hello
    if not found.stretches or found.stretches[-1].schema != hello.schema:
        stretch = Stretch(hello.schema)
        found.stretches.append(stretch)
        found.schemas[stretch.schema_id] = hello.schema


def _read_block(found: ParsedBatch, packed: Block) -> str:
    stretch = found.stretches[-1] if found.stretches else None
    if stretch is None or packed.schema != stretch.schema_id:
        said = stretch.schema_id if stretch else "none"
        return f"the block's schema is {packed.schema[:64]!r}; the last hello said {said}"
    try:
        view = columns.unpack(packed, stretch.schema)
    except (columns.BadBlock, ValueError, MemoryError) as error:
        return str(error)
    if packed.first_step <= found.last_step:
        return f"the block begins at step {packed.first_step}; the stream already holds step {found.last_step}"
    if (packed.rows > 1 and np.any(np.diff(view.steps) <= 0)) or np.any(view.times < 0):
        return "the block's steps do not increase, or a time lies before 1970"
    stretch.blocks.append(view)
    stretch.rows += len(view)
    found.last_step = packed.last_step
    found.chunks.append((packed, int(view.times[0]), int(view.times[-1])))
    return ""
