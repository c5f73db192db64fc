"""Reads curves from segments: their columns, or the coarse levels where there are many values."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from ammeter.wire import columns as block
from ammeter.wire.columns import Floats, Ints
from ammeter_server.curves.curve import CurveQuery
from ammeter_server.curves.curve_chunk import CurveChunk, RowsInMemory, measured_chunks, places_of
from ammeter_server.db import Row, Store, column_codec
from ammeter_server.db.integer_codec import unpack_across, unpack_integers
from ammeter_server.db.queries.steps.columns import StoredColumn, stored_columns
from ammeter_server.db.queries.steps.stream_info import StreamInfo

SEGMENTS_PER_READ = 16
"""Segments per transaction in reads of complete columns: 40 MB for 200 columns with their neighbours."""


@dataclass
class SegmentReader:
    """Reads the chunks of each name from a stream's segments."""

    store: Store
    info: StreamInfo
    query: CurveQuery
    segments: Sequence[Row[Any]]
    _rows: dict[int, tuple[slice, RowsInMemory, int]] = field(default_factory=dict)

    def chunks(self) -> dict[str, list[CurveChunk]]:
        chunks: dict[str, list[CurveChunk]] = {name: [] for name in self.query.names}
        use_coarse = sum(segment.rows for segment in self.segments) >= self.query.coarse_from
        for schema, group in groupby(self.segments, key=lambda segment: segment.schema):
            names = {place: name for name, place in places_of(self.info.schemas[schema], self.query.names).items()}
            same_schema = list(group)
            if not names:
                continue
            coarse = self._coarse(names, same_schema) if use_coarse else {}
            remaining = [place for place in names if place not in coarse]
            for place, place_chunks in (coarse | self._fine(remaining, same_schema)).items():
                chunks[names[place]] += place_chunks
        return chunks

    def _fine(self, places: Sequence[int], segments: Sequence[Row[Any]]) -> dict[int, list[CurveChunk]]:
        """Reads all values."""
        chunks: dict[int, list[CurveChunk]] = {}
        for begin in range(0, len(segments) if places else 0, SEGMENTS_PER_READ):
            batch = segments[begin : begin + SEGMENTS_PER_READ]
            rows = {segment.first_step: self.rows_of(segment) for segment in batch}
            first, last = batch[0].first_step, batch[-1].first_step
            with self.store.reading() as connection:
                stored = list(stored_columns(connection, self.info, places, first, last))
            for column in stored:
                within, in_memory, count = rows[column.first_step]
                chunks.setdefault(column.place, []).extend(measured_chunks(in_memory, column.values(count)[within]))
        return chunks

    def rows_of(self, segment: Row[Any]) -> tuple[slice, RowsInMemory, int]:
        """Returns the segment's rows between the steps, and the number of all its rows. Unpacked once per segment."""
        if segment.first_step not in self._rows:
            steps, times = (unpack_integers(packed, segment.rows) for packed in (segment.steps, segment.times))
            within = self.query.within(steps)
            self._rows[segment.first_step] = within, RowsInMemory(steps[within], times[within]), segment.rows
        return self._rows[segment.first_step]

    def _coarse(self, places: Iterable[int], segments: Sequence[Row[Any]]) -> dict[int, list[CurveChunk]]:
        """Reads the coarse levels: per 512 values those that a chart must show.

        Columns with few values are left to _fine().
        """
        edges = segments[0].first_step, segments[-1].first_step
        with self.store.reading() as connection:
            stored = list(stored_columns(connection, self.info, places, *edges, with_data_at_ends=True))
        chunks = {}
        rows = _SegmentRows(self, segments)
        for place, group in groupby(stored, key=lambda column: column.place):
            parts = list(group)
            if sum(part.header.measured for part in parts) >= self.query.coarse_from:
                keys, values = rows.coarse(parts)
                chunks[place] = [CurveChunk(rows, keys, values, complete=False)]
        return chunks


@dataclass
class _SegmentRows:
    """Rows of several segments. A position is the segment's number times 2^16 plus the row."""

    reader: SegmentReader
    segments: Sequence[Row[Any]]
    _bounded_steps: Ints | None = None
    _steps: dict[int, Ints] = field(default_factory=dict)
    _bounds: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def stamps(self, places: Ints) -> tuple[Ints, Ints]:
        wanted, numbers = np.unique(places >> 16, return_inverse=True)
        segments = [self.segments[number] for number in wanted.tolist()]
        rows, inside = [segment.rows for segment in segments], places & 0xFFFF
        return (
            unpack_across([segment.steps for segment in segments], rows, numbers, inside),
            unpack_across([segment.times for segment in segments], rows, numbers, inside),
        )

    def steps_at(self, places: Ints) -> Ints:
        steps = np.empty_like(places)
        for number in np.unique(places >> 16).tolist():
            if number not in self._steps:  # all columns need the same steps
                segment = self.segments[number]
                self._steps[number] = unpack_integers(segment.steps, segment.rows)
            mask = places >> 16 == number
            steps[mask] = self._steps[number][places[mask] & 0xFFFF]
        return steps

    def bounds(self, steps: Ints) -> Ints:
        if self._bounded_steps is not steps:  # all columns pass the same array
            self._bounded_steps, self._bounds = steps, np.array([self._bound(step) for step in steps.tolist()])
        return self._bounds

    def _bound(self, step: int) -> int:
        number = bisect_left(self.segments, step, key=lambda segment: int(segment.last_step))
        segment = self.segments[min(number, len(self.segments) - 1)]
        return number << 16 | int(np.searchsorted(unpack_integers(segment.steps, segment.rows), step))

    def coarse(self, stored: Sequence[StoredColumn]) -> tuple[Ints, Floats]:
        """Returns (positions, values) of one column from its coarse levels.

        Short columns without a coarse level and the segments at both ends are read completely.
        """
        numbers = {segment.first_step: number for number, segment in enumerate(self.segments)}
        coarse_columns = [column for column in stored if column.data is None]
        levels = [self._of_edge(numbers[column.first_step], column) for column in stored if column.data is not None]
        level = column_codec.coarse(b"".join(column.header.coarse for column in coarse_columns))
        of_row = np.array([numbers[column.first_step] for column in coarse_columns], np.int64)
        buckets, places, values = column_codec.candidates(level)
        counts = [len(column.header.coarse) // column_codec.COARSE.itemsize for column in coarse_columns]
        levels.append((of_row.repeat(counts)[buckets] << 16 | places, values))
        keys, first = np.unique(np.concatenate([keys for keys, _ in levels]), return_index=True)
        return keys, np.concatenate([values for _, values in levels])[first]

    def _of_edge(self, number: int, stored: StoredColumn) -> tuple[Ints, Floats]:
        """Returns (positions, values) within the query's steps, from packed values.

        For segments at an end of the query, and for segments with few values.
        """
        within, _, count = self.reader.rows_of(self.segments[number])
        values = stored.values(count)[within]
        places = np.flatnonzero(block.measured(values))
        values = values[places]
        places += within.start
        if len(values) > column_codec.BUCKET_VALUES:
            level = column_codec.summarize(values, places)
            _, inside, extremes = column_codec.candidates(level)
            ends = [0, -1]
            places, values = np.concatenate([inside, places[ends]]), np.concatenate([extremes, values[ends]])
        return (np.int64(number) << 16) | places, values
