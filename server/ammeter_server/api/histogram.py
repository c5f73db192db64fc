"""GET /api/v1/runs/{run}/spectrum: magnitudes of all gradient elements over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from fastapi import APIRouter, Query, Response

from ammeter.wire.columns import Ints
from ammeter_server.api.runs import require_run
from ammeter_server.context import AppContext, ContextDep
from ammeter_server.curves.run_axis import ALONE, StepAxis, within
from ammeter_server.db.json_safe import number
from ammeter_server.db.queries import events as query
from ammeter_server.db.queries.steps import sources as step_sources
from ammeter_server.http.pagination import PageSize, PageToken, key_of, token
from ammeter_server.http.query_params import First, Last, Ranks, Since, Until, begin_of, end_of, ranks_of

router = APIRouter(prefix="/api/v1/runs/{run}/spectrum", tags=["runs"])

EVENT = "gradient.spectrum"

EVENTS_PER_READ = 1000
"""Number of events that one transaction reads."""

MAX_BINS = 4096


@dataclass(frozen=True)
class Spectrum:
    """Spectra of one stream.

    Each list has one entry per reading or per group of consecutive readings.

    A group has the first step and time, the last step and the sum of the counts.

    Attributes:
        counts: Elements with floor(log2 |x|) = lowest, lowest + 1 and so on; the outermost bins include everything
            beyond.
        scales: The loss scale by which the gradients were multiplied.
        times: Seconds since the epoch.
    """

    rank: int
    stream: str
    lowest: int
    steps: list[int]
    last_steps: list[int]
    times: list[float]
    scales: list[float | str | None]
    counts: list[list[int]]
    zeros: list[int]
    nonfinite: list[int]
    readings: list[int]


@dataclass(frozen=True)
class SpectrumList:
    items: list[Spectrum]
    next_page_token: str | None


class Reading(NamedTuple):
    """One histogram as recorded in an event."""

    step: int
    time: int
    lowest: int
    scale: float | None
    counts: Ints


@router.get("", summary="Exponents over time", responses={200: {"model": SpectrumList}}, response_class=Response)
def read_spectrum(
    context: ContextDep,
    run: str,
    rank: Ranks = None,
    stream: str | None = None,
    first: First = None,
    last: Last = None,
    since: Since = None,
    until: Until = None,
    axis: StepAxis = "run",
    points: Annotated[int, Query(ge=1, le=10_000, description="Maximum entries per stream.")] = 500,
    page_size: PageSize = 100,
    page_token: PageToken = None,
) -> Response:
    """Lists one item per stream with spectra.

    If there are more readings than `points`, consecutive ones are summed: every element counts, and so does a single
    non-finite one. Steps, `from` and `to` continue over the attempts of the run, without steps that a later attempt
    replaces, unless `axis` is `life`.
    """
    after = key_of(page_token, (int, int, str))
    with context.store.reading() as connection:
        require_run(connection, run)
        sources = step_sources.streams_with_steps(connection, run, ranks_of(rank), stream)
    remaining = [source for source in sources if after is None or (source.rank, source.started, source.id) > after]
    lives = context.axes.of(context.store, run) if axis == "run" else ALONE
    items: list[Spectrum] = []
    for source in remaining:
        if len(items) == page_size:
            break
        where = lives.place(source.id)
        if (own := within(where, first, last)) is not None:
            span = query.Span(*own, begin_of(since), end_of(until))
            items += _summarized(source, list(_readings(context, run, source.id, span)), points, where.begin)
        reached = source
    more = bool(remaining) and reached is not remaining[-1]
    following = token(reached.rank, reached.started, reached.id) if more else None
    return Response(msgspec.json.encode(SpectrumList(items, following)), media_type="application/json")


def _readings(context: AppContext, run: str, stream: str, span: query.Span) -> Iterator[Reading]:
    """Yields the stream's readings in order.

    Invalid histograms are skipped, and so are those whose bins differ from the first.
    """
    number, bins = -1, None
    while True:
        with context.store.reading() as connection:
            rows = query.named(connection, run, stream, EVENT, number, span, EVENTS_PER_READ)
        for row in rows:
            reading = _read(row.step, row.time, row.data)
            if reading and (bins := bins or (reading.lowest, len(reading.counts))) == (
                reading.lowest,
                len(reading.counts),
            ):
                yield reading
        if len(rows) < EVENTS_PER_READ:
            return
        number = rows[-1].number


def _read(step: int, time: int, data: dict[str, Any]) -> Reading | None:
    lowest, counts, scale = data.get("lowest"), data.get("counts"), data.get("scale")
    if not isinstance(lowest, int) or not isinstance(counts, list) or not 3 <= len(counts) <= MAX_BINS:
        return None
    if not all(isinstance(count, int) and 0 <= count < 2**53 for count in counts):
        return None
    return Reading(step, time, lowest, scale if isinstance(scale, int | float) else None, np.array(counts, np.int64))


def _summarized(
    source: step_sources.Source, readings: Sequence[Reading], points: int, offset: int
) -> Iterator[Spectrum]:
    if not readings:
        return
    edges = np.linspace(0, len(readings), min(points, len(readings)) + 1).astype(np.intp)
    first_readings = [readings[edge] for edge in edges[:-1]]
    summed = np.add.reduceat(np.stack([reading.counts for reading in readings]), edges[:-1])
    yield Spectrum(
        rank=source.rank,
        stream=source.id,
        lowest=readings[0].lowest,
        steps=[reading.step + offset for reading in first_readings],
        last_steps=[readings[edge - 1].step + offset for edge in edges[1:]],
        times=[reading.time / 1e9 for reading in first_readings],
        scales=[None if reading.scale is None else number(reading.scale) for reading in first_readings],
        counts=summed[:, :-2].tolist(),
        zeros=summed[:, -2].tolist(),
        nonfinite=summed[:, -1].tolist(),
        readings=np.diff(edges).tolist(),
    )
