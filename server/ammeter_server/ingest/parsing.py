"""Checks the items of a batch and sorts them by kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

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

    @property
    def has_rows_only(self) -> bool:
        """Whether the batch consists of rows of the schema that the stream already had."""
        return len(self.stretches) == 1 and bool(self.chunks) and not self.stretches[0].frames


def parse(
    items: Sequence[Item],
    schema: Schema | None,
    last_step: int,
    ended: bool,
    postponed: Stretch | None = None,
) -> ParsedBatch:
    """Checks and sorts the items of a batch.

    Args:
        items: In their order.
        schema: In force before the batch; None before the first hello.
        last_step: Of the stream's last row.
        ended: Whether the stream has its final record.
        postponed: Stored rows with that schema that are to be judged with the batch.

    Raises:
        Problem: 422 with the index of the first item that does not fit.
    """
    parsed = ParsedBatch(last_step=last_step)
    if postponed is not None:
        parsed.stretches.append(replace(postponed, blocks=[*postponed.blocks], frames=[]))
    elif schema is not None:
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
