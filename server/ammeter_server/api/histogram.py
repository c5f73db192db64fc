"""GET /api/v1/runs/{run}/spectrum: magnitudes of all gradient elements over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import msgspec
import numpy as np
from fastapi import APIRouter, Query, Response

from ammeter_server.api.runs import require_run
from ammeter_server.context import ContextDep
from ammeter_server.curves import spectra
from ammeter_server.curves.run_axis import ALONE, StepAxis, within
from ammeter_server.db.json_safe import number
from ammeter_server.db.queries import events as query
from ammeter_server.db.queries.steps import sources as step_sources
from ammeter_server.http.pagination import PageSize, PageToken, key_of, token
from ammeter_server.http.query_params import First, Last, Ranks, Since, Until, begin_of, end_of, ranks_of

router = APIRouter(prefix="/api/v1/runs/{run}/spectrum", tags=["runs"])


@dataclass(frozen=True)
class Spectrum:
    """Spectra of one stream.

    Each list has one entry per reading or per group of consecutive readings.

    A group has the first step and time, the last step and the sum of the counts.

    Attributes:
        counts: Elements with floor(log2 |x|) = lowest, lowest + 1 and so on; the outermost bins include everything
            beyond, except those of one tensor.
        scales: The loss scale by which the gradients were multiplied; null if it is unknown, or differs in a group.
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


@router.get("", summary="Exponents over time", responses={200: {"model": SpectrumList}}, response_class=Response)
def read_spectrum(
    context: ContextDep,
    run: str,
    rank: Ranks = None,
    stream: str | None = None,
    tensor: Annotated[str | None, Query(description="Of this tensor's gradient alone; fewer readings.")] = None,
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
            if tensor is None:
                read = list(spectra.readings(context.store, run, source.id, span))
            else:
                read = spectra.readings_of_tensor(context.store, run, source.id, span, tensor)
            items += _summarized(source, read, points, where.begin)
        reached = source
    more = bool(remaining) and reached is not remaining[-1]
    following = token(reached.rank, reached.started, reached.id) if more else None
    return Response(msgspec.json.encode(SpectrumList(items, following)), media_type="application/json")


def _summarized(
    source: step_sources.Source, readings: Sequence[spectra.Reading], points: int, offset: int
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
        scales=[_scale_of(readings[begin:end]) for begin, end in pairwise(edges.tolist())],
        counts=summed[:, :-2].tolist(),
        zeros=summed[:, -2].tolist(),
        nonfinite=summed[:, -1].tolist(),
        readings=np.diff(edges).tolist(),
    )


def _scale_of(readings: Sequence[spectra.Reading]) -> float | str | None:
    scale, *others = {reading.scale for reading in readings}
    return None if others or scale is None else number(scale)
