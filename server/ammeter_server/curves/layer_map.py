"""Reads one stat of all tensors of a stream for a heat map.

Where there is much to read, ranges of steps begin where buckets of segments' summaries do. Each cell then has exactly
the extreme of its steps, or their first non-finite value, and no value is unpacked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ammeter.wire.columns import ABSENT, Floats, Ints, measured
from ammeter.wire.frames import Schema
from ammeter_server.curves.stat_summary import NONFINITE_VALUES, Summary, bucket_rows, buckets_of, unpack_summary
from ammeter_server.db import Row, Store
from ammeter_server.db.integer_codec import unpack_integers
from ammeter_server.db.queries.steps.columns import stored_columns, stored_summaries
from ammeter_server.db.queries.steps.rows import segments_of, views
from ammeter_server.db.queries.steps.stream_info import ColumnSelection, StreamInfo, stream_info

MAX_UNPACKED_VALUES = 2**25
"""Rows times tensors of segments whose values are read for a map, in at most 0.8 s; above it summaries are read."""

NEVER = 2**63 - 1


@dataclass
class Cells:
    """The cells of a map: float32 and int64 of [tensors, ranges].

    A cell has the first non-finite value of its steps, else the highest value, or the lowest with `lowest`, the first
    of equal ones. Without a measurement it is absent, and its step is -1. Values come in any order.
    """

    tensors: int
    edges: Ints
    lowest: bool
    values: Floats = field(init=False)
    at: Ints = field(init=False)

    def __post_init__(self) -> None:
        count = self.tensors * (len(self.edges) - 1)
        self.values, self.at = np.full(count, ABSENT, np.float32), np.full(count, -1, np.int64)
        self._best = np.full(count, -np.inf, np.float32)

    def add_rows(self, values: Floats, steps: Ints) -> None:
        """Adds float32[tensors, rows] of ascending steps, absent where nothing was measured."""
        begin, end = np.searchsorted(steps, self.edges[[0, -1]])
        values, steps = values[:, begin:end], steps[begin:end]
        rows = np.flatnonzero(measured(values).any(axis=0))
        if not len(rows):
            return
        values, steps = values[:, rows], steps[rows]
        ranges = np.searchsorted(self.edges, steps, "right") - 1
        starts = np.flatnonzero(np.diff(ranges, prepend=-1))
        ranks = self._ranks(values)
        best = np.maximum.reduceat(ranks, starts, axis=1)
        equal = ranks == best.repeat(np.diff(starts, append=len(steps)), axis=1)
        first = np.minimum.reduceat(np.where(equal, np.arange(len(steps)), len(steps)), starts, axis=1)
        self.add(np.take_along_axis(values, first, axis=1), steps[first])

    def add(self, values: Floats, steps: Ints) -> None:
        """Adds float32[tensors, n] with the step of each value."""
        ranges = np.searchsorted(self.edges, steps, "right") - 1
        ranks = self._ranks(values)
        inside = (ranks > -np.inf) & (ranges >= 0) & (ranges < len(self.edges) - 1)
        tensors = np.arange(self.tensors)[:, None] * (len(self.edges) - 1)
        self._merge((tensors + ranges)[inside], ranks[inside], values[inside], steps[inside])

    def rows(self) -> Iterator[tuple[Floats, Ints]]:
        """Yields the values and steps of each tensor."""
        shape = self.tensors, len(self.edges) - 1
        yield from zip(self.values.reshape(shape), self.at.reshape(shape), strict=True)

    def _merge(self, cells: Ints, ranks: Floats, values: Floats, steps: Ints) -> None:
        before = self._best[cells]
        np.maximum.at(self._best, cells, ranks)
        winners = np.flatnonzero(ranks == self._best[cells])
        self.at[cells[winners[before[winners] < ranks[winners]]]] = NEVER  # what is there is less
        known = self.at[cells[winners]]
        np.minimum.at(self.at, cells[winners], steps[winners])
        first = winners[(steps[winners] == self.at[cells[winners]]) & (steps[winners] < known)]
        self.values[cells[first]] = values[first]

    def _ranks(self, values: Floats) -> Floats:
        """Returns ranks; the value with the highest rank is shown. Infinite if it is not finite, or not measured."""
        ranks = np.where(np.isfinite(values), -values if self.lowest else values, np.float32(np.inf))
        return np.where(measured(values), ranks, np.float32(-np.inf)).astype(np.float32, copy=False)


@dataclass
class LifeStat:
    """A stat of the first tensors of a stream, between two own steps.

    Attributes:
        begin: The step of the run at the stream's own step 0.
        first, last: Own steps.
    """

    store: Store
    run: str
    stream: str
    stat: str
    begin: int
    first: int
    last: int
    info: StreamInfo = field(init=False)
    segments: Sequence[Row[Any]] = field(init=False)
    _summaries: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with self.store.reading() as connection:
            self.info = stream_info(connection, self.run, self.stream)
            self.segments = segments_of(connection, self.info, self.first - 1, self.last)

    @property
    def size(self) -> int:
        """Rows times tensors of the segments that hold the stat."""
        schemas = ((row.rows, self._schema(row)) for row in self.segments)
        return sum(rows * len(schema.tensors) for rows, schema in schemas if self.stat in schema.stats)

    @property
    def compacted_to(self) -> int:
        """The last own step of the segments that are known now."""
        return int(self.segments[-1].last_step) if self.segments else -1

    def read_summaries(self, to: int) -> None:
        """Reads the summaries of segments that lie between the steps as a whole, and end by step `to` of the run."""
        whole = [row for row in self.segments if row.last_step <= min(self.last, to - self.begin)]
        whole = [row for row in whole if row.first_step >= self.first and self.stat in self._schema(row).stats]
        numbers = {self._schema(row).stats.index(self.stat) for row in whole}
        for number in numbers:
            rows = [row.first_step for row in whole if self._schema(row).stats.index(self.stat) == number]
            with self.store.reading() as connection:
                packed = stored_summaries(connection, self.info, number, rows[0], rows[-1])
            self._summaries |= {first_step: packed[first_step] for first_step in rows if first_step in packed}

    def buckets(self) -> list[tuple[Ints, int]]:
        """Returns the first steps of the buckets of each summarized segment, and its last step, on the run's axis.

        A range of steps may begin at one of these buckets, not within one.
        """
        buckets = []
        for row in self.segments:
            if row.first_step in self._summaries:
                starts = bucket_rows(row.rows, buckets_of(self._summaries[row.first_step]))[:-1]
                steps = unpack_integers(row.steps, row.rows, starts) + self.begin
                buckets.append((steps, int(row.last_step) + self.begin))
        return buckets

    def add_to(self, cells: Cells, names: Sequence[str]) -> None:
        """Adds the values of these tensors."""
        for row in self.segments:
            schema, packed = self._schema(row), self._summaries.get(row.first_step)
            if packed is not None:
                steps = unpack_integers(row.steps, row.rows) + self.begin
                summary = unpack_summary(packed, len(schema.tensors))
                _add_summary(cells, summary, _where(schema, names), steps)
            elif self.stat in schema.stats:
                self._add_segment(cells, row, names)
        after = max(self.compacted_to, self.first - 1)
        for view in views(self.store, self.run, self.stream, after + 1, self.last, ColumnSelection((), (self.stat,))):
            if self.stat in view.schema.stats:
                values = _chosen(view.values[view.schema.span(self.stat)], _where(view.schema, names))
                self._add_rows(cells, values, view.steps)

    def _add_segment(self, cells: Cells, row: Row[Any], names: Sequence[str]) -> None:
        """Adds all values of a segment."""
        schema = self._schema(row)
        begin = schema.span(self.stat).start
        places = {begin + place: index for index, place in enumerate(_where(schema, names).tolist()) if place >= 0}
        values = np.full((len(names), row.rows), ABSENT, np.float32)
        with self.store.reading() as connection:
            ends = row.first_step, row.first_step
            for column in stored_columns(connection, self.info, places, *ends):
                values[places[column.place]] = column.values(row.rows)
        self._add_rows(cells, values, unpack_integers(row.steps, row.rows))

    def _add_rows(self, cells: Cells, values: Floats, steps: Ints) -> None:
        within = slice(*np.searchsorted(steps, [self.first, self.last + 1]))
        cells.add_rows(values[:, within], steps[within] + self.begin)

    def _schema(self, row: Row[Any]) -> Schema:
        return self.info.schemas[row.schema]


def aligned(edges: Ints, buckets: Sequence[tuple[Ints, int]]) -> Ints:
    """Returns the edges, moved to the beginning of the bucket that they lie in; equal ones once."""
    moved = edges.copy()
    for starts, last in buckets:
        inside = np.flatnonzero((edges >= starts[0]) & (edges <= last))
        moved[inside] = starts[np.searchsorted(starts, edges[inside], "right") - 1]
    return np.unique(moved)


def _add_summary(cells: Cells, summary: Summary, where: Ints, steps: Ints) -> None:
    best, at = (summary.low, summary.low_at) if cells.lowest else (summary.high, summary.high_at)
    filled = summary.low <= summary.high
    cells.add(_chosen(np.where(filled, best, ABSENT), where), steps[_chosen(at, where, 0)])
    if summary.odd.any():
        odd = np.where(summary.odd > 0, NONFINITE_VALUES[summary.odd], ABSENT)
        cells.add(_chosen(odd, where), steps[_chosen(summary.odd_at, where, 0)])


def _where(schema: Schema, names: Sequence[str]) -> Ints:
    """Returns the position of each tensor in a schema; -1 if it has none of that name."""
    places: Mapping[str, int] = {tensor.name: place for place, tensor in enumerate(schema.tensors)}
    return np.array([places.get(name, -1) for name in names], np.int64)


def _chosen(rows: npt.NDArray[Any], where: Ints, absent: Any = ABSENT) -> npt.NDArray[Any]:
    """Returns the rows of the tensors, filled where a tensor is unknown."""
    if len(where) and where[0] >= 0 and len(rows) and (np.diff(where) == 1).all():
        return rows[where[0] : where[-1] + 1]
    chosen = rows[where]
    chosen[where < 0] = absent
    return chosen
