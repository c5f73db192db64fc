"""Reads curves of a stream, reduced to the points of a chart.

Sources are the columns or coarse levels of segments, and blocks. If there is much more data than points, only coarse
levels are read, and only the steps and times of chosen points.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import numpy as np

from ammeter.wire import columns as block
from ammeter.wire import frames
from ammeter.wire.columns import Floats, Ints
from ammeter_server.curves.downsample import choose
from ammeter_server.db import Row, Store, column_codec
from ammeter_server.db.queries import series as query

SEGMENTS_PER_READ = 16
"""Segments per transaction in reads of whole columns: 40 MB for 200 columns with their neighbours."""


class Curve(NamedTuple):
    """The measurements of one name. Curves of one query with the same steps share arrays.

    complete: whether these are all measurements, so that there is none between two neighbours; else a selection.
    """

    steps: Ints
    times: Ints
    values: Floats
    complete: bool = True


@dataclass(frozen=True)
class CurveQuery:
    """A query of names between two steps, with at most `points` points per name.

    by_time: spread the points evenly over time.
    """

    names: Sequence[str]
    points: int
    first: int | None = None
    last: int | None = None
    by_time: bool = False

    @property
    def behind(self) -> int:
        """The step before the first."""
        return (self.first or 0) - 1

    @property
    def much(self) -> int:
        """Measured values from which coarse levels alone provide at least half of the points."""
        return column_codec.BUCKET * self.points // 4

    def within(self, steps: Ints) -> slice:
        """Returns the rows between the steps."""
        end = len(steps) if self.last is None else int(np.searchsorted(steps, self.last, "right"))
        return slice(int(np.searchsorted(steps, self.behind, "right")), end)


def read(store: Store, run: str, stream: str, asked: CurveQuery) -> dict[str, Curve]:
    """Returns the curve of each name that was measured between the steps, in query order.

    A late value of run.log, for a step whose row was already written, appears at that step.
    """
    found = draw(asked, chunks_of(store, run, stream, asked))
    if any(_may_be_logged(name) for name in asked.names):
        with store.reading() as connection:
            rows = query.logged(connection, run, stream, asked.behind + 1, asked.last)
        for name, late in logged(rows, asked.names).items():
            found[name] = _last_word(found[name], late) if name in found else late
    return {name: found[name] for name in asked.names if name in found}


def logged(rows: Sequence[Row[Any]], names: Sequence[str]) -> dict[str, Curve]:
    """Returns the values of these names in `values.logged` events, at their steps."""
    found = {}
    for name in names if rows else ():
        said = [(row.step, row.time, row.data[name]) for row in rows if _is_number(row.data.get(name))]
        if said and _may_be_logged(name):
            steps, times = (np.array(column, np.int64) for column in list(zip(*said, strict=True))[:2])
            found[name] = _last_word(Curve(steps, times, np.array([value for *_, value in said], np.float32)))
    return found


def _may_be_logged(name: str) -> bool:
    return name in LOGGED or (":" not in name and name not in frames.SCALARS)


LOGGED = ("loss", "val_loss", "samples")
"""Columns of every stream that run.log can set, beside the program's own names."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _last_word(*curves: Curve) -> Curve:
    """Joins curves, in ascending steps. The last of several values of a step counts."""
    steps, times, values = (np.concatenate(column) for column in list(zip(*curves, strict=True))[:3])
    last = len(steps) - 1 - np.unique(steps[::-1], return_index=True)[1]
    return Curve(steps[last], times[last], values[last])


def chunks_of(store: Store, run: str, stream: str, asked: CurveQuery) -> dict[str, list[CurveChunk]]:
    """Returns the pieces of each name's curve.

    They are all measurements, or the coarse levels where there are many.
    """
    with store.reading() as connection:
        of = query.known(connection, run, stream)
        segments = query.segments_of(connection, of, asked.behind, asked.last)
    reading = _Reading(store, of, asked, segments)
    covered = segments[-1].last_step if segments else asked.behind
    views = query.views(store, run, stream, max(covered, asked.behind) + 1, asked.last)
    pieces = reading.pieces()
    for name, behind in of_views(asked, views).items():
        pieces[name] += behind
    return pieces


def draw(asked: CurveQuery, pieces: Mapping[str, Sequence[CurveChunk]]) -> dict[str, Curve]:
    """Joins each name's consecutive pieces into one curve."""
    joined: Joined = {}
    return {name: _curve(some, asked, joined) for name, some in pieces.items() if some}


def of_views(asked: CurveQuery, views: Iterable[block.View]) -> dict[str, list[CurveChunk]]:
    """Returns the pieces of each name in rows that are in memory."""
    found: dict[str, list[CurveChunk]] = {name: [] for name in asked.names}
    schema, places = frames.Schema(), dict[str, int]()
    for view in views:
        if view.schema is not schema:
            schema, places = view.schema, places_of(view.schema, asked.names)
        within = asked.within(view.steps)
        rows = Known(view.steps[within], view.times[within])
        for name, place in places.items():
            found[name] += _measured(rows, view.values[place, within])
    return found


def places_of(schema: frames.Schema, names: Sequence[str]) -> dict[str, int]:
    """Returns name -> column of the names that the schema has.

    A name is a scalar or, as `stat:tensor`, a stat of a tensor.
    """
    found = {name: place for place, name in enumerate(schema.scalars)}
    tensors = {tensor.name: place for place, tensor in enumerate(schema.tensors)}
    for name in names:
        stat, _, tensor = name.partition(":")
        if name not in found and stat in schema.stats and tensor in tensors:
            found[name] = schema.span(stat).start + tensors[tensor]
    return {name: found[name] for name in names if name in found}


class Rows(Protocol):
    """Rows of a stream, addressed by position."""

    def stamps(self, places: Ints) -> tuple[Ints, Ints]:
        """Returns the steps and times of rows."""
        ...

    def steps_at(self, places: Ints) -> Ints:
        """Returns the steps of rows."""
        ...

    def bounds(self, steps: Ints) -> Ints:
        """Returns the position of the first row at or after each of these ascending steps."""
        ...


@dataclass(frozen=True)
class Known:
    """Rows with steps and times in memory."""

    steps: Ints
    times: Ints

    def stamps(self, places: Ints) -> tuple[Ints, Ints]:
        return self.steps[places], self.times[places]

    def steps_at(self, places: Ints) -> Ints:
        return self.steps[places]

    def bounds(self, steps: Ints) -> Ints:
        return np.searchsorted(self.steps, steps)


class CurveChunk(NamedTuple):
    """A part of one curve.

    Attributes:
        rows: The rows that it was measured in.
        places: Positions of the values in `rows`; None for all rows.
        complete: Whether the rows have no further values.
    """

    rows: Rows
    places: Ints | None
    values: Floats
    complete: bool = True


def _measured(rows: Known, values: Floats) -> list[CurveChunk]:
    there = block.measured(values)
    if there.all() and len(values):
        return [CurveChunk(rows, None, values)]
    places = np.flatnonzero(there)
    return [CurveChunk(rows, places, values[places])] if len(places) else []


Joined = dict[tuple[tuple[int, bytes], ...], tuple[Ints, Ints]]


def _curve(pieces: Sequence[CurveChunk], asked: CurveQuery, joined: Joined) -> Curve:
    values = np.concatenate([piece.values for piece in pieces])
    if len(values) <= asked.points:
        return Curve(*_all_stamps(pieces, joined), values, all(piece.complete for piece in pieces))
    if asked.by_time:
        steps, times = _all_stamps(pieces, joined)
        kept = choose(values, asked.points, times)
        return Curve(steps[kept], times[kept], values[kept], False)
    kept = choose(values, asked.points)
    ends = np.cumsum([len(piece.values) for piece in pieces])
    parts = np.split(kept, np.searchsorted(kept, ends[:-1]))
    stamps = [
        _stamps(piece, part - (end - len(piece.values))) for piece, part, end in zip(pieces, parts, ends, strict=True)
    ]
    steps, times = (np.concatenate(arrays) for arrays in zip(*stamps, strict=True))
    return Curve(steps, times, values[kept], False)


def _stamps(piece: CurveChunk, chosen: Ints) -> tuple[Ints, Ints]:
    return piece.rows.stamps(chosen if piece.places is None else piece.places[chosen])


def _all_stamps(pieces: Sequence[CurveChunk], joined: Joined) -> tuple[Ints, Ints]:
    """Returns the steps and times of all values; curves with the same rows share arrays."""
    same = tuple((id(piece.rows), b"" if piece.places is None else piece.places.tobytes()) for piece in pieces)
    if same not in joined:
        stamps = [_stamps(piece, np.arange(len(piece.values))) for piece in pieces]
        steps, times = (np.concatenate(arrays) for arrays in zip(*stamps, strict=True))
        joined[same] = steps, times
    return joined[same]


@dataclass
class _Reading:
    """Reads the pieces of each name from a stream's segments."""

    store: Store
    of: query.Known
    asked: CurveQuery
    segments: Sequence[Row[Any]]

    def pieces(self) -> dict[str, list[CurveChunk]]:
        found: dict[str, list[CurveChunk]] = {name: [] for name in self.asked.names}
        much = sum(segment.rows for segment in self.segments) >= self.asked.much
        for schema, group in groupby(self.segments, key=lambda segment: segment.schema):
            names = {place: name for name, place in places_of(self.of.schemas[schema], self.asked.names).items()}
            some = list(group)
            if not names:
                continue
            coarse = self._coarse(names, some) if much else {}
            rest = [place for place in names if place not in coarse]
            for place, pieces in (coarse | self._fine(rest, some)).items():
                found[names[place]] += pieces
        return found

    def _fine(self, places: Sequence[int], segments: Sequence[Row[Any]]) -> dict[int, list[CurveChunk]]:
        """Reads all values."""
        found: dict[int, list[CurveChunk]] = {}
        for begin in range(0, len(segments) if places else 0, SEGMENTS_PER_READ):
            some = segments[begin : begin + SEGMENTS_PER_READ]
            rows = {segment.first_step: self.known(segment) for segment in some}
            first, last = some[0].first_step, some[-1].first_step
            with self.store.reading() as connection:
                stored = list(query.stored(connection, self.of, places, first, last))
            for column in stored:
                within, known, count = rows[column.first_step]
                found.setdefault(column.place, []).extend(_measured(known, column.values(count)[within]))
        return found

    def known(self, segment: Row[Any]) -> tuple[slice, Known, int]:
        """Returns the segment's rows between the steps, and the number of all its rows."""
        steps, times = (column_codec.unpack_whole(packed, segment.rows) for packed in (segment.steps, segment.times))
        within = self.asked.within(steps)
        return within, Known(steps[within], times[within]), segment.rows

    def _coarse(self, places: Iterable[int], segments: Sequence[Row[Any]]) -> dict[int, list[CurveChunk]]:
        """Reads the coarse levels: per 512 values those that a chart must show.

        Columns with few values are left to _fine().
        """
        edges = segments[0].first_step, segments[-1].first_step
        with self.store.reading() as connection:
            stored = list(query.stored(connection, self.of, places, *edges, with_data=edges))
        found = {}
        rows = _Segments(self, segments)
        for place, group in groupby(stored, key=lambda column: column.place):
            some = list(group)
            if sum(segment.told.measured for segment in some) >= self.asked.much:
                keys, values = rows.coarse(some)
                found[place] = [CurveChunk(rows, keys, values, complete=False)]
        return found


@dataclass
class _Segments:
    """Rows of several segments. A position is the segment's number times 2^16 plus the row."""

    reading: _Reading
    segments: Sequence[Row[Any]]
    _bounded: Ints | None = None
    _steps: dict[int, Ints] = field(default_factory=dict)
    _bounds: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def stamps(self, places: Ints) -> tuple[Ints, Ints]:
        steps, times = np.empty_like(places), np.empty_like(places)
        numbers, begins = np.unique(places >> 16, return_index=True)
        for number, begin, end in zip(numbers.tolist(), begins, [*begins[1:], len(places)], strict=True):
            segment, inside = self.segments[number], places[begin:end] & 0xFFFF
            steps[begin:end] = column_codec.unpack_whole(segment.steps, segment.rows, inside)
            times[begin:end] = column_codec.unpack_whole(segment.times, segment.rows, inside)
        return steps, times

    def steps_at(self, places: Ints) -> Ints:
        steps = np.empty_like(places)
        for number in np.unique(places >> 16).tolist():
            if number not in self._steps:  # all columns need the same steps
                segment = self.segments[number]
                self._steps[number] = column_codec.unpack_whole(segment.steps, segment.rows)
            of = places >> 16 == number
            steps[of] = self._steps[number][places[of] & 0xFFFF]
        return steps

    def bounds(self, steps: Ints) -> Ints:
        if self._bounded is not steps:  # all columns pass the same array
            self._bounded, self._bounds = steps, np.array([self._bound(step) for step in steps.tolist()])
        return self._bounds

    def _bound(self, step: int) -> int:
        number = bisect_left(self.segments, step, key=lambda segment: int(segment.last_step))
        segment = self.segments[min(number, len(self.segments) - 1)]
        return number << 16 | int(np.searchsorted(column_codec.unpack_whole(segment.steps, segment.rows), step))

    def coarse(self, stored: Sequence[query.Stored]) -> tuple[Ints, Floats]:
        """Returns (positions, values) of one column from its coarse levels.

        Short columns without a coarse level and the segments at both ends are read completely.
        """
        numbers = {segment.first_step: number for number, segment in enumerate(self.segments)}
        told = [column for column in stored if column.data is None]
        levels = [self._of_edge(numbers[column.first_step], column) for column in stored if column.data is not None]
        level = column_codec.coarse(b"".join(column.told.coarse for column in told))
        of_row = np.array([numbers[column.first_step] for column in told], np.int64)
        buckets, places, values = column_codec.candidates(level)
        counts = [len(column.told.coarse) // column_codec.COARSE.itemsize for column in told]
        levels.append((of_row.repeat(counts)[buckets] << 16 | places, values))
        keys, first = np.unique(np.concatenate([keys for keys, _ in levels]), return_index=True)
        return keys, np.concatenate([values for _, values in levels])[first]

    def _of_edge(self, number: int, stored: query.Stored) -> tuple[Ints, Floats]:
        """Returns (positions, values) within the query's steps, from packed values.

        For segments at an end of the query, and for segments with few values.
        """
        within, _, count = self.reading.known(self.segments[number])
        values = stored.values(count)[within]
        places = np.flatnonzero(block.measured(values))
        values = values[places]
        places += within.start
        if len(values) > column_codec.BUCKET:
            level = column_codec.summarize(values, places)
            _, inside, extremes = column_codec.candidates(level)
            ends = [0, -1]
            places, values = np.concatenate([inside, places[ends]]), np.concatenate([extremes, values[ends]])
        return (np.int64(number) << 16) | places, values
