"""Packs rows of a stream as column blocks, and provides the view that verdicts read.

Separate from frames.py, because it needs numpy and zstandard, which the writing process does not load. A packed block
is one zstd frame over steps (int64), times (int64, ns) and values (float32, column-major). Integers are delta-coded,
and all parts are byte-shuffled, so that equal bytes of neighbours are adjacent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import zstandard

from ammeter.wire import zstd
from ammeter.wire.frames import ABSENT_BITS, LOSS, Block, Bye, Event, Hello, Lost, Schema, Steps
from ammeter.wire.shuffle import shuffle, unshuffle, unshuffle_floats

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

ABSENT = np.uint32(ABSENT_BITS).view(np.float32)
MAX_BLOCK_BYTES = 64 * 2**20
"""Size limit of an unpacked block; a packed block that declares more is refused before it is unpacked."""


class BadBlock(ValueError):
    """A packed block that does not match its header."""


@dataclass(frozen=True)
class Tick:
    """A check of a stream by the clock, without new frames.

    Attributes:
        now: time of this check in ns.
        alive: whether the writer is alive; None if unknown, because the shipper is silent too.
        last_seen: time of the stream's last request in ns.
        offline: whether a report of a journal makes the check.
        completed_step, completed_time: the newest step that the writer has completed and its time in ns, if that is
            known without its row; else -1 and 0.
    """

    now: int
    alive: bool | None
    last_seen: int
    offline: bool = False
    completed_step: int = -1
    completed_time: int = 0


@dataclass(frozen=True)
class View:
    """A section of one stream: n rows as arrays, and the other frames between them.

    The boundaries between views are arbitrary; conclusions must not depend on them.

    Attributes:
        steps: int64[n].
        times: int64[n] in ns.
        values: float32[columns, n].
        frames: (rows before it, frame), in order.
    """

    schema: Schema
    steps: Ints
    times: Ints
    values: Floats
    frames: Sequence[tuple[int, Hello | Event | Lost | Bye]] = ()
    tick: Tick | None = None

    def __len__(self) -> int:
        return len(self.steps)

    def scalar(self, name: str) -> Floats:
        """float32[n] of a scalar column; all absent if the stream does not have it."""
        place = self.schema.places.get(name)
        if place is None:
            return np.full(len(self.steps), ABSENT, np.float32)
        column: Floats = self.values[place]
        return column

    def loss(self) -> Floats:
        """float32[n]: the loss of each step.

        Of several losses, the first that was measured, or one that is not finite.
        """
        return self._loss

    @cached_property
    def has_finite_losses(self) -> bool:
        """Whether loss() is finite in every row, so that no verdict on losses has to look for the others."""
        return bool(np.isfinite(self._loss).all())

    @cached_property
    def is_measured(self) -> Mask:
        """bool[scalars, n]: where each scalar column was measured."""
        return measured(self.values[: len(self.schema.scalars)])

    @cached_property
    def _loss(self) -> Floats:
        loss, others = self.scalar(LOSS), [name for name in self.schema.losses if name != LOSS]
        if not others:
            return loss
        loss = loss.copy()
        for name in others:
            column = self.scalar(name)
            if np.isfinite(column).all() and np.isfinite(loss).all():
                continue
            replaced = measured(column) & (~measured(loss) | ~np.isfinite(column) & np.isfinite(loss))
            loss[replaced] = column[replaced]
        return loss

    def loss_at(self, at: int) -> str:
        """Returns the column from which loss() takes its value in this row."""
        values = {name: self.scalar(name)[at : at + 1] for name in self.schema.losses}
        names = [name for name, value in values.items() if measured(value)[0]]
        return next((name for name in names if not np.isfinite(values[name][0])), names[0] if names else LOSS)

    def stat(self, name: str) -> Floats:
        """float32[tensors, n] of a per-tensor stat; all absent if the stream does not have it."""
        if name not in self.schema.stats:
            return np.full((len(self.schema.tensors), len(self.steps)), ABSENT, np.float32)
        return self.values[self.schema.span(name)]

    @property
    def numel(self) -> Ints:
        """int64[tensors]: elements per tensor."""
        return np.asarray(self.schema.numels)

    def parts(self, *wanted: str) -> Iterator[View | Hello | Event | Lost | Bye]:
        """Yields rows, as Views, and other frames in the journal's order.

        Args:
            wanted: names of events and kinds of frames ("bye") to include; without any, all are included.
        """
        if not self.frames and self.tick is None:
            if len(self):
                yield self
            return
        begin = 0
        for after, frame in self.frames:
            if wanted and _frame_name(frame) not in wanted:
                continue
            if after > begin:
                yield self._between(begin, after)
                begin = after
            yield frame
        if begin < len(self):
            yield self._between(begin, len(self))

    def records(self, *scalars: str) -> Iterator[tuple[int, tuple[float, ...]]]:
        """Iterates over (step, numbers) of each row, in the order of the names.

        They are Python numbers, absent ones NaN. The loss is that of loss().
        """
        columns = [(self.loss() if name == LOSS else self.scalar(name)).tolist() for name in scalars]
        return zip(self.steps.tolist(), zip(*columns, strict=True), strict=True)

    def rows(self, begin: int, end: int) -> View:
        """Returns the rows from begin to end, without the frames between them."""
        return View(self.schema, self.steps[begin:end], self.times[begin:end], self.values[:, begin:end])

    def _between(self, begin: int, end: int) -> View:
        return self.rows(begin, end) if begin or end < len(self) else self._all_rows

    @cached_property
    def _all_rows(self) -> View:
        """All rows without the frames: one View for all verdicts, because it caches what they share."""
        return self.rows(0, len(self))


def measured(column: Floats) -> Mask:
    """True where a value was measured, NaN and Inf included; False where it is absent."""
    mask: Mask = np.ascontiguousarray(column).view(np.uint32) != np.uint32(ABSENT_BITS)
    return mask


def fits(row: Steps, schema: Schema) -> bool:
    """Returns whether a journal's row is valid for this schema; journals are untrusted input."""
    length_fits = len(row.values) % 4 == 0 and len(row.values) // 4 <= schema.width
    return length_fits and 0 <= row.step < 2**63 and 0 <= row.time < 2**63 and 16 + 4 * schema.width <= MAX_BLOCK_BYTES


def view(
    schema: Schema,
    rows: Sequence[Steps],
    frames: Sequence[tuple[int, Hello | Event | Lost | Bye]] = (),
    tick: Tick | None = None,
) -> View:
    """Builds the View of a journal's rows.

    Raises BadBlock for a row longer than the schema.
    """
    values = np.full((len(rows), schema.width), ABSENT, np.float32)
    for index, row in enumerate(rows):
        row_values = np.frombuffer(row.values, "<f4")
        if len(row_values) > schema.width:
            raise BadBlock(f"step {row.step} has {len(row_values)} columns; its schema has {schema.width}")
        values[index, : len(row_values)] = row_values
    steps = np.array([row.step for row in rows], np.int64)
    times = np.array([row.time for row in rows], np.int64)
    return View(schema, steps, times, np.ascontiguousarray(values.T), frames, tick)


def pack(rows: View, level: int = zstd.LEVEL) -> Block:
    """Packs a view's rows as one compressed block; bit-exact, NaN payloads and -0 included."""
    parts = (
        shuffle(np.diff(rows.steps, prepend=np.int64(0))),
        shuffle(np.diff(rows.times, prepend=np.int64(0))),
        shuffle(np.ascontiguousarray(rows.values, "<f4")),
    )
    data = zstd.compress(b"".join(parts), level)
    return Block(
        schema=rows.schema.id,
        rows=len(rows),
        columns=rows.schema.width,
        first_step=int(rows.steps[0]),
        last_step=int(rows.steps[-1]),
        data=data,
    )


def unpack(block: Block, schema: Schema) -> View:
    """Unpacks a block. Raises BadBlock, with the reason, before too much memory is allocated."""
    return View(schema, *unpack_columns(block, schema))


def unpack_columns(block: Block, schema: Schema, places: Sequence[int] | None = None) -> tuple[Ints, Ints, Floats]:
    """Unpacks steps, times and some columns of a block, by default all. Raises as unpack()."""
    n, width = block.rows, block.columns
    raw = _decompress(block.data, _unpacked_bytes(block, schema))
    steps = np.cumsum(unshuffle(raw[: n * 8]), dtype=np.int64)
    times = np.cumsum(unshuffle(raw[n * 8 : n * 16]), dtype=np.int64)
    values = unshuffle_floats(raw[n * 16 :], width, places)
    if steps[0] != block.first_step or steps[-1] != block.last_step or (n > 1 and np.any(np.diff(steps) < 0)):
        declared, actual = f"{block.first_step} to {block.last_step}", f"{steps[0]} to {steps[-1]}"
        raise BadBlock(f"block declares steps {declared}; it contains {actual}")
    return steps, times, values


def join(schema: Schema, views: Iterable[View]) -> View:
    """Concatenates the rows of several views with one schema."""
    parts = list(views)
    if not parts:
        return view(schema, ())
    return View(
        schema,
        np.concatenate([part.steps for part in parts]),
        np.concatenate([part.times for part in parts]),
        np.concatenate([part.values for part in parts], axis=1),
    )


def unpack_all(blocks: Sequence[Block], schema: Schema) -> View:
    """Unpacks one or more blocks into a single view, each before the next is decompressed. Raises as unpack()."""
    for block in blocks:
        _unpacked_bytes(block, schema)
    ends = list(accumulate(block.rows for block in blocks))
    steps, times = np.empty(ends[-1], np.int64), np.empty(ends[-1], np.int64)
    values = np.empty((schema.width, ends[-1]), np.float32)
    for block, end in zip(blocks, ends, strict=True):
        rows = slice(end - block.rows, end)
        steps[rows], times[rows], values[:, rows] = unpack_columns(block, schema)
    return View(schema, steps, times, values)


def _unpacked_bytes(block: Block, schema: Schema) -> int:
    n, width = block.rows, block.columns
    if width != schema.width:
        raise BadBlock(f"block has {width} columns; its schema {schema.id} has {schema.width}")
    size = n * 16 + n * width * 4
    if n < 1 or size > MAX_BLOCK_BYTES:
        raise BadBlock(f"block has {n} rows of {width} columns; at least 1 row and at most {MAX_BLOCK_BYTES} bytes")
    return size


def _decompress(data: bytes, expected: int) -> bytes:
    try:
        size = zstandard.frame_content_size(data)
        if size != expected:
            raise BadBlock(f"block unpacks to {size} bytes; its rows and columns need {expected}")
        raw = zstd.decompress(data, expected)
    except zstandard.ZstdError as error:
        raise BadBlock(f"block cannot be decompressed: {error}") from error
    if len(raw) != expected:
        raise BadBlock(f"block unpacked to {len(raw)} bytes; its rows and columns need {expected}")
    return raw


def _frame_name(frame: Hello | Event | Lost | Bye) -> str:
    return frame.name if isinstance(frame, Event) else type(frame).__name__.lower()
