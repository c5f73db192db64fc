"""One axis of steps for a run with several attempts, from stored rows and events.

Each process of a rank is one attempt and counts its own steps from 0.
ammeter.verdicts.framework.placement defines their positions on the axis.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import Query

from ammeter.verdicts.framework.placement import LifeRecord, Place, place
from ammeter.verdicts.framework.run_history import EVENTS, LifeReader
from ammeter.wire.columns import Ints
from ammeter.wire.ranks import Life, lives
from ammeter_server.curves.curve import Curve, CurveQuery
from ammeter_server.curves.curve_chunk import CurveChunk, Rows
from ammeter_server.db import Connection, Row, Store
from ammeter_server.db.queries import events
from ammeter_server.db.queries.runs import ancestry, lives_of
from ammeter_server.db.queries.steps.rows import views
from ammeter_server.db.queries.steps.sources import stored_lives
from ammeter_server.db.queries.steps.stream_info import ColumnSelection
from ammeter_server.runs.run_chain import MAX_RUNS_PER_CHAIN

MAX_CACHED_LIVES = 10_000
"""Cached attempts: a few hundred bytes each, and 8 bytes for each skipped step."""

SKIPPED = ColumnSelection(("skipped",))

OWN = Place()
"""The place of an attempt whose own steps are those of the run."""

StepAxis = Annotated[
    Literal["run", "life"],
    Query(
        description="`run`: steps continue over the attempts of a run, and a later attempt replaces the steps that it"
        " repeats. `life`: each process counts its own steps from 0."
    ),
]


@dataclass(frozen=True)
class RunLife:
    """An attempt on the axis of its run.

    Attributes:
        number: Counts from 1.
        stream: Stream of its lowest rank.
        step_offset: The run's step at the attempt's own step 0.
        first_step, last_step: Steps of the run.
        replaced_from: The step of the run from which later attempts replace this one; None if none does.
    """

    number: int
    stream: str
    step_offset: int
    first_step: int
    last_step: int
    replaced_from: int | None


@dataclass(frozen=True)
class RunAxis:
    """The places of a run's attempts.

    Attributes:
        lives: Empty for a run whose steps are those of its only life.
        places: stream -> its place.
    """

    lives: Sequence[RunLife] = ()
    places: Mapping[str, Place] = field(default_factory=dict)

    def place(self, stream: str) -> Place:
        return self.places.get(stream, OWN)

    def offset(self, stream: str) -> int:
        """Returns the step of the run at the stream's own step 0."""
        return self.place(stream).begin


ALONE = RunAxis()


class RunAxes:
    """Reads axes of runs and caches them, so that only new events are read. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], _KnownLife] = OrderedDict()

    def of(self, store: Store, run: str, connection: Connection | None = None) -> RunAxis:
        """Returns the axis of the run, which continues the axes of its predecessors."""
        with nullcontext(connection) if connection is not None else store.reading() as connection:
            line = _line_up_to(connection, run)
            known = [(row.id, life) for row in line for life in lives(stored_lives(connection, row.id))]
            if len(known) < 2:
                return ALONE
            lowest = min(life[0].rank for _, life in known)
            leading = [(row, life) for row, life in known if life[0].rank == lowest]
            rows: dict[tuple[str, str], Row[Any]] = {}
            for of in line:
                streams = lives_of(connection, of.id, [life[0].stream for run_id, life in leading if run_id == of.id])
                rows |= {(of.id, stream): row for stream, row in streams.items()}
        leading = [(run_id, life) for run_id, life in leading if (run_id, life[0].stream) in rows]
        records = []
        for index, (run_id, life) in enumerate(leading):
            row, followed = rows[run_id, life[0].stream], index + 1 < len(leading)
            records.append(self._life(run_id, row.id).record(store, run_id, row, followed))
        return _axis(run, leading, records)

    def _life(self, run: str, stream: str) -> _KnownLife:
        with self._lock:
            known = self._known.setdefault((run, stream), _KnownLife(LifeReader(columns=())))
            self._known.move_to_end((run, stream))
            while len(self._known) > MAX_CACHED_LIVES:
                self._known.popitem(last=False)
            return known


def _axis(run: str, leading: Sequence[tuple[str, Sequence[Life]]], records: Sequence[LifeRecord]) -> RunAxis:
    run_lives: list[RunLife] = []
    places: dict[str, Place] = {}
    for (of, life), record, where in zip(leading, records, place(records), strict=True):
        if of != run or where is None:
            continue
        places |= {member.stream: where for member in life}
        steps = where.begin + record.first_step, where.begin + record.last_step
        run_lives.append(RunLife(len(run_lives) + 1, life[0].stream, where.begin, *steps, where.end))
    return RunAxis(run_lives, places) if len(run_lives) > 1 or any(where != OWN for where in places.values()) else ALONE


def _line_up_to(connection: Connection, run: str) -> list[Row[Any]]:
    """Returns the run's predecessors and the run, the first one first."""
    chain: list[Row[Any]] = []
    before: str | None = run
    while before is not None and len(chain) <= MAX_RUNS_PER_CHAIN:
        row = ancestry(connection, before)
        if row is None or (chain and row.project != chain[-1].project):
            break
        chain.insert(0, row)
        before = (row.environment or {}).get("continues")
    return chain


@dataclass
class _KnownLife:
    """The part of an attempt that was read.

    Attributes:
        reader: Reads its events.
        events: Number of the next event.
        read_to: The last step that was read.
    """

    reader: LifeReader
    events: int = 0
    first_step: int = -1
    first_time: int = 0
    read_to: int = -1
    skipped: list[Ints] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, store: Store, run: str, row: Row[Any], followed: bool) -> LifeRecord:
        """Returns the attempt's record. Skipped steps are read only if another attempt follows."""
        with self.lock:
            if row.events > self.events:
                with store.reading() as connection:
                    for number, name, step, data in events.of_names(connection, run, row.id, EVENTS, self.events):
                        self.reader.event(name, step, data)
                        self.events = number + 1
                self.events = max(self.events, row.events)
            self._read_rows(store, run, row, followed and row.counters.get("skipped", 0) > 0)
            return replace(
                self.reader.record(),
                first_step=self.first_step,
                first_time=self.first_time,
                last_step=-1 if row.last_step is None else row.last_step,
                last_time=row.last_step_time or self.first_time,
                skipped=np.concatenate([np.zeros(0, np.int64), *self.skipped]),
            )

    def _read_rows(self, store: Store, run: str, row: Row[Any], wholly: bool) -> None:
        """Reads the first rows; with `wholly` all new rows, for their skipped steps."""
        if self.first_step >= 0 and (not wholly or row.last_step <= self.read_to):
            return
        for view in views(store, run, row.id, self.read_to + 1, None, SKIPPED):
            if not len(view):
                continue
            if self.first_step < 0:
                self.first_step, self.first_time = int(view.steps[0]), int(view.times[0])
            self.skipped.append(view.steps[view.scalar("skipped") > 0])
            self.read_to = int(view.steps[-1])
            if not wholly:
                return


def within(where: Place, first: int | None, last: int | None) -> tuple[int | None, int | None] | None:
    """Returns the attempt's own steps between these steps of the run; None without any."""
    if where == OWN:
        return first, last
    ends = [step for step in (last, None if where.end is None else where.end - 1) if step is not None]
    begin, end = max((first or 0) - where.begin, 0), min(ends) - where.begin if ends else None
    return None if end is not None and end < begin else (begin, end)


def on_axis(where: Place, read: Callable[[CurveQuery], dict[str, Curve]]) -> Callable[[CurveQuery], dict[str, Curve]]:
    """Returns a function that reads the curves of an attempt by the run's steps."""

    def placed(query: CurveQuery) -> dict[str, Curve]:
        own = within(where, query.first, query.last)
        return curves_on_axis(where, read(replace(query, first=own[0], last=own[1]))) if own is not None else {}

    return read if where == OWN else placed


def curves_on_axis(where: Place, curves: dict[str, Curve]) -> dict[str, Curve]:
    """Converts an attempt's curves to the run's steps.

    Curves that shared their array of steps share the converted one.
    """
    if where == OWN:
        return curves
    placed: dict[int, Ints] = {}
    placed_curves = {}
    for name, curve in curves.items():
        steps = placed.setdefault(id(curve.steps), where.steps_of_run(curve.steps))
        placed_curves[name] = curve._replace(
            steps=steps, times=curve.times[: len(steps)], values=curve.values[: len(steps)]
        )
    return {name: curve for name, curve in placed_curves.items() if len(curve.steps)}


@dataclass
class _PlacedRows:
    """Rows of an attempt by the steps of its run."""

    rows: Rows
    begin: int
    _converted_steps: Ints | None = None
    _own: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def stamps(self, places: Ints) -> tuple[Ints, Ints]:
        steps, times = self.rows.stamps(places)
        return steps + self.begin, times

    def steps_at(self, places: Ints) -> Ints:
        return self.rows.steps_at(places) + self.begin

    def bounds(self, steps: Ints) -> Ints:
        if self._converted_steps is not steps:  # all columns pass the same array, by which the rows cache the result
            self._converted_steps, self._own = steps, steps - self.begin
        return self.rows.bounds(self._own)


def chunks_on_axis(where: Place, chunks: Mapping[str, Sequence[CurveChunk]]) -> dict[str, list[CurveChunk]]:
    """Converts the chunks of an attempt's curves to the steps of its run."""
    rows: dict[int, _PlacedRows] = {}
    return {
        name: [
            chunk._replace(rows=rows.setdefault(id(chunk.rows), _PlacedRows(chunk.rows, where.begin)))
            for chunk in life_chunks
        ]
        for name, life_chunks in chunks.items()
    }
