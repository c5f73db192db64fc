"""Curves that follow from others: the distance of the scaled gradients from the ends of a format's range.

`headroom:float16` is the number of powers of two between the largest scaled gradient and the largest number of the
format. `underflow:float16` is the share of the scaled gradient elements that are below its smallest normal number, and
not zero.
They have values only at steps at which everything they follow from was read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ammeter.whatif.formats import FORMATS, Format
from ammeter.wire.columns import Ints
from ammeter_server.curves import reader, spectra
from ammeter_server.curves.curve import Curve, CurveQuery
from ammeter_server.curves.curve_chunk import CurveChunk
from ammeter_server.curves.downsample import choose
from ammeter_server.db import Store
from ammeter_server.db.queries.events import Span

ALL_POINTS = 2**40
"""So many points that every value is read: the values of two columns belong together only at equal steps."""

Read = Callable[[Store, str, str, CurveQuery, Format], Curve | None]


def read(store: Store, run: str, stream: str, query: CurveQuery) -> dict[str, Curve]:
    """Returns the curve of each name that was measured or follows from measurements, in query order."""
    own = {name: derived for name in query.names if (derived := _derived(name))}
    measured = replace(query, names=[name for name in query.names if name not in own])
    curves = reader.read(store, run, stream, measured) if measured.names else {}
    for name, (derive, number_format) in own.items():
        curve = derive(store, run, stream, query, number_format)
        if curve is not None and len(curve.values):
            curves[name] = _reduced(curve, query)
    return {name: curves[name] for name in query.names if name in curves}


def _derived(name: str) -> tuple[Read, Format] | None:
    kind, _, number_format = name.partition(":")
    if kind not in KINDS or number_format not in FORMATS:
        return None
    return KINDS[kind], FORMATS[number_format]


def _headroom(store: Store, run: str, stream: str, query: CurveQuery, number_format: Format) -> Curve | None:
    """A run without a loss scale has gradients as they are, with a factor of 1."""
    all_values = replace(query, names=("grad_absmax", "scale"), points=ALL_POINTS)
    chunks = reader.chunks_of(store, run, stream, all_values)
    scales = {id(chunk.rows): chunk for chunk in chunks["scale"]}
    parts: list[Curve] = []
    for chunk in chunks["grad_absmax"]:
        places = np.arange(len(chunk.values)) if chunk.places is None else chunk.places
        factors = _scale_at(scales.get(id(chunk.rows)), places) if scales else np.ones(len(places))
        scaled = chunk.values * factors
        known = np.isfinite(scaled) & (scaled > 0)
        headroom = math.log2(number_format.largest) - np.log2(scaled[known])
        parts.append(Curve(*chunk.rows.stamps(places[known]), headroom.astype(np.float32)))
    if not parts:
        return None
    steps, times, values = (np.concatenate(arrays) for arrays in list(zip(*parts, strict=True))[:3])
    return Curve(steps, times, values)


def _scale_at(chunk: CurveChunk | None, places: Ints) -> npt.NDArray[np.float64]:
    """The loss scale in these rows of the chunk, NaN where it was not recorded."""
    if chunk is None:
        return np.full(len(places), np.nan)
    if chunk.places is None:
        return chunk.values[places].astype(np.float64)
    nearest = np.minimum(np.searchsorted(chunk.places, places), len(chunk.places) - 1)
    return np.where(chunk.places[nearest] == places, chunk.values[nearest], np.nan).astype(np.float64)


def _underflow(store: Store, run: str, stream: str, query: CurveQuery, number_format: Format) -> Curve | None:
    read_spectra = list(spectra.readings(store, run, stream, Span(query.first, query.last)))
    normal = math.frexp(number_format.min_normal)[1] - 1
    if not read_spectra or normal <= read_spectra[0].lowest:  # the lowest bin has everything below it
        return None
    counts = np.stack([reading.counts for reading in read_spectra])
    below = counts[:, : min(normal - read_spectra[0].lowest, counts.shape[1] - 2)].sum(axis=1)
    stamps = np.array([(reading.step, reading.time) for reading in read_spectra], np.int64)
    read_elements = counts.sum(axis=1)
    some = read_elements > 0
    return Curve(stamps[some, 0], stamps[some, 1], (below[some] / read_elements[some]).astype(np.float32))


KINDS: dict[str, Read] = {"headroom": _headroom, "underflow": _underflow}


def _reduced(curve: Curve, query: CurveQuery) -> Curve:
    if len(curve.values) <= query.points:
        return curve
    chosen = choose(curve.values, query.points, curve.times if query.by_time else None)
    return Curve(curve.steps[chosen], curve.times[chosen], curve.values[chosen], False)
