"""Reads curves of a stream, reduced to the points of a chart.

Sources are the columns or coarse levels of segments, and blocks. If there is much more data than points, only coarse
levels are read, and only the steps and times of chosen points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ammeter.wire.columns import Ints
from ammeter.wire.logged_values import may_be_logged
from ammeter_server.curves.curve import Curve, CurveQuery
from ammeter_server.curves.curve_chunk import CurveChunk, chunks_of_views
from ammeter_server.curves.downsample import choose
from ammeter_server.curves.late_values import last_values, late_curves
from ammeter_server.curves.segment_reader import SegmentReader
from ammeter_server.db import Store
from ammeter_server.db.queries.events import late_values
from ammeter_server.db.queries.steps.rows import next_rows, segments_of, views_from
from ammeter_server.db.queries.steps.stream_info import stream_info


def read(store: Store, run: str, stream: str, query: CurveQuery) -> dict[str, Curve]:
    """Returns the curve of each name that was measured between the steps, in query order.

    A late value of run.log, for a step whose row was already written, appears at that step.
    """
    curves = draw(query, chunks_of(store, run, stream, query))
    if any(may_be_logged(name) for name in query.names):
        with store.reading() as connection:
            rows = late_values(connection, run, stream, query.after + 1, query.last)
        for name, late in late_curves(rows, query.names).items():
            curves[name] = last_values(curves[name], late) if name in curves else late
    return {name: curves[name] for name in query.names if name in curves}


def chunks_of(store: Store, run: str, stream: str, query: CurveQuery) -> dict[str, list[CurveChunk]]:
    """Returns the chunks of each name's curve.

    They are all measurements, or the coarse levels where there are many.
    """
    with store.reading() as connection:
        info = stream_info(connection, run, stream)
        segments = segments_of(connection, info, query.after, query.last)
        covered = max(segments[-1].last_step, query.after) if segments else query.after
        later = next_rows(connection, info, covered, query.last)
    chunks = SegmentReader(store, info, query, segments).chunks()
    for name, later_chunks in chunks_of_views(query, views_from(store, info, later, covered, query.last)).items():
        chunks[name] += later_chunks
    return chunks


def draw(query: CurveQuery, chunks: Mapping[str, Sequence[CurveChunk]]) -> dict[str, Curve]:
    """Joins each name's consecutive chunks into one curve."""
    shared: SharedStamps = {}
    return {name: _curve(chunks_of_name, query, shared) for name, chunks_of_name in chunks.items() if chunks_of_name}


SharedStamps = dict[tuple[tuple[int, bytes], ...], tuple[Ints, Ints]]


def _curve(chunks: Sequence[CurveChunk], query: CurveQuery, shared: SharedStamps) -> Curve:
    values = np.concatenate([chunk.values for chunk in chunks])
    if len(values) <= query.points:
        return Curve(*_all_stamps(chunks, shared), values, all(chunk.complete for chunk in chunks))
    if query.by_time:
        steps, times = _all_stamps(chunks, shared)
        chosen = choose(values, query.points, times)
        return Curve(steps[chosen], times[chosen], values[chosen], False)
    chosen = choose(values, query.points)
    ends = np.cumsum([len(chunk.values) for chunk in chunks])
    parts = np.split(chosen, np.searchsorted(chosen, ends[:-1]))
    stamps = [
        _stamps(chunk, part - (end - len(chunk.values))) for chunk, part, end in zip(chunks, parts, ends, strict=True)
    ]
    steps, times = (np.concatenate(arrays) for arrays in zip(*stamps, strict=True))
    return Curve(steps, times, values[chosen], False)


def _stamps(chunk: CurveChunk, chosen: Ints) -> tuple[Ints, Ints]:
    return chunk.rows.stamps(chosen if chunk.places is None else chunk.places[chosen])


def _all_stamps(chunks: Sequence[CurveChunk], shared: SharedStamps) -> tuple[Ints, Ints]:
    """Returns the steps and times of all values; curves with the same rows share arrays."""
    key = tuple((id(chunk.rows), b"" if chunk.places is None else chunk.places.tobytes()) for chunk in chunks)
    if key not in shared:
        stamps = [_stamps(chunk, np.arange(len(chunk.values))) for chunk in chunks]
        steps, times = (np.concatenate(arrays) for arrays in zip(*stamps, strict=True))
        shared[key] = steps, times
    return shared[key]
