"""Parts of curves, and the rows that they were measured in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from ammeter.wire import columns as block
from ammeter.wire import frames
from ammeter.wire.columns import Floats, Ints
from ammeter_server.curves.curve import CurveQuery


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
class RowsInMemory:
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


def measured_chunks(rows: RowsInMemory, values: Floats) -> list[CurveChunk]:
    """Returns the measured values as a chunk; none without measurement."""
    mask = block.measured(values)
    if mask.all() and len(values):
        return [CurveChunk(rows, None, values)]
    places = np.flatnonzero(mask)
    return [CurveChunk(rows, places, values[places])] if len(places) else []


def chunks_of_views(query: CurveQuery, views: Iterable[block.View]) -> dict[str, list[CurveChunk]]:
    """Returns the chunks of each name in rows that are in memory."""
    chunks: dict[str, list[CurveChunk]] = {name: [] for name in query.names}
    schema, places = frames.Schema(), dict[str, int]()
    for view in views:
        if view.schema is not schema:
            schema, places = view.schema, places_of(view.schema, query.names)
        within = query.within(view.steps)
        rows = RowsInMemory(view.steps[within], view.times[within])
        for name, place in places.items():
            chunks[name] += measured_chunks(rows, view.values[place, within])
    return chunks


def places_of(schema: frames.Schema, names: Sequence[str]) -> dict[str, int]:
    """Returns name -> column of the names that the schema has.

    A name is a scalar or, as `stat:tensor`, a stat of a tensor.
    """
    places = {name: place for place, name in enumerate(schema.scalars)}
    tensors = {tensor.name: place for place, tensor in enumerate(schema.tensors)}
    for name in names:
        stat, _, tensor = name.partition(":")
        if name not in places and stat in schema.stats and tensor in tensors:
            places[name] = schema.span(stat).start + tensors[tensor]
    return {name: places[name] for name in names if name in places}
