"""GET /api/v1/runs/{run}/what-if: what each tensor would lose in another format or at another scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Query, Response

from ammeter.whatif.answer import TensorForecast, answer
from ammeter.whatif.formats import FORMATS
from ammeter.whatif.histogram import Histogram
from ammeter.whatif.question import Question, format_of, kind_of, scale_of
from ammeter.whatif.readings import EVENT, readings_of
from ammeter_server.api.runs import require_run
from ammeter_server.context import AppContext, ContextDep
from ammeter_server.curves.run_axis import StepAxis
from ammeter_server.db.queries import events as query
from ammeter_server.db.queries.steps.sources import Source, streams_with_steps
from ammeter_server.http.pagination import PageSize, PageToken, key_of, token
from ammeter_server.http.problems import Problem

router = APIRouter(prefix="/api/v1/runs/{run}/what-if", tags=["runs"])

EVENTS_PER_READ = 100
"""Number of events that one transaction reads: of a large model, each has some 20 KB."""

Part = TypeVar("Part")


@dataclass(frozen=True)
class Forecasts:
    """The tensors of one rank's newest attempt with readings, in the order in which they were first read.

    Attributes:
        of: gradient or weight.
        format: The format of the question.
        scale: The scale of the question.
    """

    of: str
    format: str
    scale: float | str
    rank: int | None
    stream: str | None
    items: list[TensorForecast]
    next_page_token: str | None


@router.get("", summary="Another format or scale", responses={200: {"model": Forecasts}}, response_class=Response)
def read_forecasts(
    context: ContextDep,
    run: str,
    of: Annotated[str, Query(description="What is cast: gradient or weight.")] = "gradient",
    format: Annotated[str, Query(description=f"One of {', '.join(FORMATS)}.")] = "float16",
    scale: Annotated[
        str,
        Query(description="Factor of the unscaled elements: 1024, 2^10, `recorded`, or `best` for each tensor's own."),
    ] = "recorded",
    rank: Annotated[int | None, Query(ge=0, lt=2**31, description="Default: the lowest rank.")] = None,
    axis: StepAxis = "run",
    page_size: PageSize = 1000,
    page_token: PageToken = None,
) -> Response:
    """Lists one item per tensor whose exponents were read, with shares of its nonzero elements.

    They follow from the readings in the later half of the attempt's steps. Of a sharded tensor, they are those of the
    rank's shard. Steps continue over the attempts of the run unless `axis` is `life`.
    """
    question = Question(_valid(kind_of, of), _valid(format_of, format), _valid(scale_of, scale))
    after = key_of(page_token, (int,))
    with context.store.reading() as connection:
        require_run(connection, run)
        sources = streams_with_steps(connection, run, None if rank is None else [rank])
    source, readings = _newest_readings(context, run, sources, question.of)
    offset = context.axes.of(context.store, run).offset(source.id) if source and axis == "run" else 0
    begin = max(0, int(after[0])) if after else 0
    page = dict(islice(readings.items(), begin, begin + page_size))
    more = begin + page_size < len(readings)
    found = Forecasts(
        of=question.of,
        format=question.format.name,
        scale=question.scale,
        rank=source.rank if source else None,
        stream=source.id if source else None,
        items=list(answer(page, question, offset)),
        next_page_token=token(begin + page_size) if more else None,
    )
    return Response(msgspec.json.encode(found), media_type="application/json")


def _valid(parse: Callable[[str], Part], text: str) -> Part:
    try:
        return parse(text)
    except ValueError as error:
        raise Problem(422, str(error)) from None


def _newest_readings(
    context: AppContext, run: str, sources: Sequence[Source], of: str
) -> tuple[Source | None, dict[str, list[Histogram]]]:
    """The readings of the lowest rank, from its newest attempt that has any."""
    for source in reversed([source for source in sources if source.rank == sources[0].rank]):
        if readings := readings_of(_events(context, run, source.id), of):
            return source, readings
    return None, {}


def _events(context: AppContext, run: str, stream: str) -> Iterator[tuple[int, dict[str, Any]]]:
    number = -1
    while True:
        with context.store.reading() as connection:
            rows = query.named(connection, run, stream, EVENT, number, query.Span(), EVENTS_PER_READ)
        yield from ((row.step, row.data) for row in rows)
        if len(rows) < EVENTS_PER_READ:
            return
        number = rows[-1].number
