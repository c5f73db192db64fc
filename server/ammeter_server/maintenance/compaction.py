"""Compacts blocks of a stream into segments of columns, and small blocks into larger ones.

plan() decides purely. A segment is valid from the commit of its row: its columns are written before and the blocks are
deleted after. Readers find each row exactly once, also after a crash in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, Literal, Protocol

import msgspec
import numpy as np

from ammeter.wire import columns as block
from ammeter.wire import frames
from ammeter_server.curves.stat_summary import summaries_of
from ammeter_server.db import Connection, Row, Store
from ammeter_server.db import column_codec as columns
from ammeter_server.db.batched import Pace, in_slices
from ammeter_server.db.integer_codec import pack_integers
from ammeter_server.db.queries import compaction

MAX_SEGMENT_ROWS = 4096
"""Maximum steps of a segment. A curve over a million steps has 244 of them; one column of one takes 4 KB."""

MIN_SEGMENT_ROWS = 1024
"""Steps below which a row per column costs more than it saves. Fewer steps at the end of a stream stay blocks."""

MAX_WAITING_VALUES = 4_000_000
"""Maximum values that wait in blocks: a reader of a curve unpacks them all, in some 10 ms."""

MAX_VALUES_IN_MEMORY = 16_000_000
"""Maximum values in memory at a time, which are 64 MB. Streams of more than 15,625 columns get shorter segments."""

SMALL_BLOCK_ROWS = 32
"""Rows below which a block is joined with others; joining writes a row once more."""

MIN_SMALL_BLOCKS = 64
"""Number of small blocks that are joined at a time. At a stream's end, at most as many wait."""

MAX_BLOCK_VALUES = 2_000_000
"""Maximum values of a joined block."""

LEASE_NS = 120 * 10**9
"""Duration of the lease on a stream in nanoseconds; each segment renews it. The largest segment takes some 10 s on a
slow disk."""


class LeaseLostError(RuntimeError):
    """The lease on the stream is lost.

    It expired and another worker took it, or the run was deleted.
    """


class Waiting(Protocol):
    """A block that belongs to no segment yet, without its data."""

    @property
    def first_step(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def schema(self) -> str: ...


@dataclass(frozen=True)
class Job:
    """The result for neighbouring blocks: segments, or one joined block."""

    into: Literal["segments", "block"]
    blocks: Sequence[Waiting]


def plan(blocks: Sequence[Waiting], ended: bool) -> list[Job]:
    """Plans the jobs in order.

    Segments cover a stream from its beginning, so that blocks remain only at its end.
    """
    groups = [list(group) for _, group in groupby(blocks, key=lambda chunk: chunk.schema)]
    jobs: list[Job] = []
    for number, group in enumerate(groups, 1):
        *full, incomplete = _stretches(group)
        jobs += [Job("segments", stretch) for stretch in full]
        closed = number < len(groups) or (ended and _rows(incomplete) >= MIN_SEGMENT_ROWS)
        if incomplete and closed:
            jobs.append(Job("segments", incomplete))
        elif incomplete:
            jobs += [Job("block", chunks) for chunks in (_by_size(incomplete) if ended else _small(incomplete))]
    return jobs


def rows_of_segment(width: int) -> int:
    """Steps of a segment with this number of columns."""
    width = max(1, width)
    return max(
        16, min(MAX_SEGMENT_ROWS, max(MIN_SEGMENT_ROWS, MAX_WAITING_VALUES // width), MAX_VALUES_IN_MEMORY // width)
    )


def _stretches(group: Sequence[Waiting]) -> Iterator[list[Waiting]]:
    """Groups of blocks that fill a segment, then the incomplete rest, which may be empty."""
    stretch: list[Waiting] = []
    rows = 0
    for chunk in group:
        stretch.append(chunk)
        rows += chunk.rows
        if rows >= rows_of_segment(chunk.columns):
            yield stretch
            stretch, rows = [], 0
    yield stretch


def _small(blocks: Sequence[Waiting]) -> list[list[Waiting]]:
    """The blocks at the end, if they are many and small."""
    count = 0
    while count < len(blocks) and blocks[-1 - count].rows < SMALL_BLOCK_ROWS:
        count += 1
    small = list(blocks[len(blocks) - count :])
    enough = count >= MIN_SMALL_BLOCKS and _rows(small) * small[0].columns <= MAX_BLOCK_VALUES
    return [small] if enough else []


def _by_size(blocks: Sequence[Waiting]) -> list[list[Waiting]]:
    """All blocks, grouped up to the maximum size; groups of one are omitted."""
    joined: list[list[Waiting]] = [[]]
    for chunk in blocks:
        if joined[-1] and (_rows(joined[-1]) + chunk.rows) * chunk.columns > MAX_BLOCK_VALUES:
            joined.append([])
        joined[-1].append(chunk)
    return [group for group in joined if len(group) > 1]


def _rows(blocks: Iterable[Waiting]) -> int:
    return sum(chunk.rows for chunk in blocks)


@dataclass(frozen=True)
class Compaction:
    """Compaction of one stream under the lease of the worker `by`.

    Attributes:
        stopped: Returns whether the compaction has to end early.
    """

    store: Store
    run: str
    stream: str
    by: str
    stopped: Callable[[], bool] = lambda: False
    _schemas: dict[str, frames.Schema] = field(default_factory=dict)
    _writing: Pace = field(default_factory=Pace)
    _removing: Pace = field(default_factory=Pace)

    def run_all(self) -> tuple[int, bool]:
        """Executes all jobs.

        Returns:
            The number of rows received so far, and whether the stream is finished.

        Raises:
            LeaseLostError: Another worker has taken the stream, or the run was deleted.
        """
        self._clear()
        with self.store.reading() as connection:
            rows, ended = compaction.state(connection, self.run, self.stream)
            after = compaction.covered(connection, self.run, self.stream)
            blocks = compaction.waiting(connection, self.run, self.stream, after)
        for job in plan(blocks, ended):
            if self.stopped():
                return rows, False
            steps, last, view = self._read(job.blocks, after)
            if job.into == "block":
                self._join(steps, last, view)
            else:
                self._segments(view, last.schema, last.day)
                after = int(view.steps[-1])
                self._clear()
        return rows, ended

    def abandon(self) -> None:
        """Removes columns of a segment that another worker did not complete."""
        with self.store.reading() as connection:
            after = compaction.covered(connection, self.run, self.stream)
            left = compaction.orphaned_columns(connection, self.run, self.stream, after)
        in_slices(self.store, left, lambda c, some: compaction.remove_columns(c, self.run, self.stream, some))

    def _read(self, blocks: Sequence[Waiting], after: int) -> tuple[list[int], Row[Any], block.View]:
        """Returns the blocks' first steps, the last one's row in the database, and the steps without a segment."""
        with self.store.reading() as connection:
            ends = blocks[0].first_step, blocks[-1].first_step
            rows = compaction.blocks(connection, self.run, self.stream, *ends)
            schema = self._schema(connection, blocks[0].schema)
        packed = [
            frames.Block(row.schema, row.rows, row.columns, row.first_step, row.last_step, row.data) for row in rows
        ]
        view = block.unpack_all(packed, schema)
        begin = int(np.searchsorted(view.steps, after, "right"))
        return [row.first_step for row in rows], rows[-1], view.rows(begin, len(view))

    def _schema(self, connection: Connection, name: str) -> frames.Schema:
        if name not in self._schemas:
            body = compaction.schema(connection, self.run, self.stream, name)
            self._schemas[name] = msgspec.msgpack.decode(body, type=frames.Schema)
        return self._schemas[name]

    def _segments(self, view: block.View, schema: str, day: int) -> None:
        """Writes the rows as consecutive segments."""
        count = max(1, len(view) // rows_of_segment(view.schema.width))
        edges = np.linspace(0, len(view), count + 1).astype(int).tolist()
        for begin, end in pairwise(edges):
            self._segment(view.rows(begin, end), schema, day)

    def _segment(self, view: block.View, schema: str, day: int) -> None:
        key = {"run": self.run, "stream": self.stream, "first_step": int(view.steps[0]), "day": day}
        rows = [{**key, "part": part, **column._asdict()} for part, column in columns.pack(view.values)]
        rows += [{**key, "part": part, "head": head, "data": b""} for part, head in summaries_of(view)]
        in_slices(self.store, rows, self._add_columns, self._writing)
        extent = {"last_step": int(view.steps[-1]), "rows": len(view), "parts": len(rows), "schema": schema}
        stamps = {"steps": pack_integers(view.steps), "times": pack_integers(view.times)}
        with self.store.writing(durable=False) as connection:
            self._renew_lease(connection)
            compaction.add_segment(connection, {**key, **extent, **stamps})

    def _add_columns(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Writes some columns and renews the lease in one transaction.

        A deletion of the run therefore precedes the columns or removes them.
        """
        self._renew_lease(connection)
        compaction.add_columns(connection, rows)

    def _join(self, first_steps: Sequence[int], last: Row[Any], view: block.View) -> None:
        packed = block.pack(view)
        row = {**last._mapping, "first_time": int(view.times[0]), "last_time": int(view.times[-1])}
        row |= {"first_step": packed.first_step, "rows": packed.rows, "data": packed.data}
        with self.store.writing(durable=False) as connection:
            self._renew_lease(connection)
            compaction.remove_blocks(connection, self.run, self.stream, first_steps)
            compaction.add_block(connection, row)

    def _renew_lease(self, connection: Connection) -> None:
        """Renews the lease and locks the stream until the end of this transaction.

        Raises:
            LeaseLostError: The lease is lost.
        """
        until = time.time_ns() + LEASE_NS
        if not compaction.extend(connection, self.run, self.stream, self.by, until):
            reason = f"another worker took it over after {LEASE_NS // 10**9} s, or the run was deleted"
            raise LeaseLostError(f"stream {self.stream} of run {self.run} is lost to this worker: {reason}")

    def _clear(self) -> None:
        """Removes the blocks that segments cover."""

        def remove(connection: Connection, some: Sequence[int]) -> None:
            compaction.remove_blocks(connection, self.run, self.stream, some)

        with self.store.reading() as connection:
            gone = compaction.covered_blocks(connection, self.run, self.stream)
        in_slices(self.store, gone, remove, self._removing)


def compact(store: Store, run: str, stream: str, by: str, stopped: Callable[[], bool] = lambda: False) -> bool:
    """Compacts one stream.

    After a failure the lease remains until it expires; the next worker then removes incomplete columns.

    Returns:
        Whether this worker did the compaction.
    """
    with store.reading() as connection:
        rows, ended = compaction.state(connection, run, stream)
        after = compaction.covered(connection, run, stream)
        jobs = plan(compaction.waiting(connection, run, stream, after), ended)
        gone = compaction.covered_blocks(connection, run, stream)
    if not jobs and not gone:
        if not ended:
            return False
        with store.writing(durable=False) as connection:
            if compaction.finish(connection, run, stream, rows):
                return False
    now = time.time_ns()
    with store.writing(durable=False) as connection:
        claimed = compaction.claim(connection, run, stream, by, now, now + LEASE_NS)
    if claimed is False:
        return False
    job = Compaction(store, run, stream, by, stopped)
    if claimed is None:
        job.abandon()
    rows, finished = job.run_all()
    with store.writing(durable=False) as connection:
        compaction.release(connection, run, stream, by, rows, finished)
    return True
