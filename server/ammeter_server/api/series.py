"""GET /api/v1/runs/{run}/series: values over steps, read from segments and blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import unquote

from fastapi import APIRouter, Query, Request, Response

from ammeter.verdicts.framework.placement import Place
from ammeter.wire import ranks
from ammeter.wire.ranks import Life, lives
from ammeter_server.auth.project_access import unknown_run
from ammeter_server.context import AppContext, ContextDep
from ammeter_server.curves import derived, reader
from ammeter_server.curves.curve import Curve, CurveQuery
from ammeter_server.curves.curve_chunk import chunks_of_views
from ammeter_server.curves.encoding import FLOAT32, LAYOUT, Drawn, LabelledCurves, answer
from ammeter_server.curves.run_axis import OWN, StepAxis, on_axis
from ammeter_server.db.queries.runs import exists
from ammeter_server.db.queries.steps import sources as step_sources
from ammeter_server.db.queries.steps.rows import views
from ammeter_server.db.queries.steps.stream_info import ColumnSelection
from ammeter_server.db.queries.steps.times import steps_between
from ammeter_server.http import etags
from ammeter_server.http.pagination import PageToken, key_of, token, unknown_token
from ammeter_server.http.problems import Problem
from ammeter_server.http.query_params import First, Last, Ranks, Since, Until, begin_of, end_of, ranks_of

router = APIRouter(prefix="/api/v1/runs/{run}/series", tags=["runs"])

MAX_NAMES = 256
"""Maximum number of names in one request. A page of charts requests five, one of all layers some hundred."""

MAX_VALUES = 4_000_000
"""Maximum number of values in one response: 64 MB as JSON. A page ends when it reaches this number."""

MERGED = ColumnSelection(ranks.SCALARS, ranks.STATS)

Format = Literal["json", "float32"]


@dataclass(frozen=True)
class Series:
    """One value over steps.

    Attributes:
        rank: Null for the merged value of all ranks; `stream` is then that of the lowest.
        step_offset: The step of the run at which this attempt's own step 0 lies.
        replaced_from: The step of the run from which later attempts replace this one, or null.
        axis: Index of its steps and times in `axes`.
        complete: True if no measurement between two points was omitted.
        values: Numbers, or "NaN", "Infinity", "-Infinity".
    """

    name: str
    rank: int | None
    stream: str
    step_offset: int
    replaced_from: int | None
    axis: int
    complete: bool
    values: list[float | str]


@dataclass(frozen=True)
class Axis:
    """Steps and times of measurements. `times` are seconds since the epoch; with `times=false` there are none."""

    steps: list[int]
    times: list[float]


@dataclass(frozen=True)
class SeriesList:
    items: list[Series]
    axes: list[Axis]
    next_page_token: str | None = None


ARRAYS = {"schema": {"type": "string", "format": "binary", "description": LAYOUT}}
ANSWERS: dict[str, Any] = {"model": SeriesList, "content": {FLOAT32: ARRAYS}}


class CurveSource(NamedTuple):
    """Source of curves: a stream, or all ranks merged.

    Attributes:
        key: Its place in the list; the last part is the stream.
        place: Its place on the step axis of the run.
    """

    rank: int | None
    key: tuple[int, int, str]
    names: Sequence[str]
    read: Callable[[CurveQuery], dict[str, Curve]]
    place: Place = OWN


@router.get("", summary="Values over steps", responses={200: ANSWERS}, response_class=Response)
def read_series(
    context: ContextDep,
    request: Request,
    run: str,
    names: Annotated[
        str,
        Query(
            description="`loss,scale`; `grad.norm:<tensor>` for a tensor; `headroom:float16` and `underflow:float16` of"
            " the scaled gradients. A comma in a name is %2C."
        ),
    ],
    rank: Ranks = None,
    stream: str | None = None,
    first: First = None,
    last: Last = None,
    since: Since = None,
    until: Until = None,
    points: Annotated[int, Query(ge=16, le=100_000, description="Maximum points per series.")] = 2000,
    axis: StepAxis = "run",
    replaced: Annotated[bool, Query(description="With axis=run: includes steps that later attempts replace.")] = False,
    by: Annotated[Literal["step", "time"], Query(description="Spreads points evenly over steps or time.")] = "step",
    times: Annotated[bool, Query(description="false: the axes of the JSON form have no times.")] = True,
    merged: Annotated[bool, Query(description="Merges the gradients of all ranks or shards.")] = False,
    format: Annotated[Format, Query(description="float32: arrays after a JSON header.")] = "json",
    page_size: Annotated[int, Query(ge=1, le=10_000, description="Maximum items per page.")] = 1000,
    page_token: PageToken = None,
) -> Response:
    """Lists one item per name and stream with measurements; steps without one are omitted.

    If there are more steps than `points`, minima, maxima and non-finite values are kept. `merged`: one item per name
    and restart of the ranks, at the steps that all ranks have. Steps, `from` and `to` continue over the attempts of a
    run unless `axis` is `life`.
    """
    query = CurveQuery(names_of(names), points, first, last, by == "time")
    after = key_of(page_token, (int, int, str, str))
    if merged:
        _check_merged(query.names, rank, stream)
    with context.store.reading() as connection:
        if not exists(connection, run):
            raise unknown_run(run)
        sources = step_sources.streams_with_steps(connection, run, ranks_of(rank), stream)
        attempts = lives(step_sources.stored_lives(connection, run)) if merged else []
        marks = step_sources.change_marks(connection, run, sources)
        places = context.axes.of(context.store, run, connection)
    tag = etags.of(
        request, marks, [(place.begin, place.end) for place in map(places.place, (stream.id for stream in sources))]
    )
    if tag.known:
        return tag.unchanged()
    curve_sources = [_merged_source(context, run, life, query.names) for life in attempts]
    if not merged:
        curve_sources = [_stream_source(context, run, source, query.names) for source in sources]
    if since is not None or until is not None:
        span = begin_of(since), end_of(until)
        curve_sources = [
            _within(source, *steps_between(context.store, run, source.key[2], *span)) for source in curve_sources
        ]
    curve_sources = [_placed(source, places.place(source.key[2]), axis, replaced) for source in curve_sources]
    remaining = curve_sources if after is None else _after(curve_sources, query.names, after)
    curves, following = _page(remaining, query, page_size)
    return tag.on(answer(curves, format, following, times))


def _stream_source(context: AppContext, run: str, source: step_sources.Source, names: Sequence[str]) -> CurveSource:
    key = source.rank, source.started, source.id
    return CurveSource(source.rank, key, names, lambda query: derived.read(context.store, run, source.id, query))


def _merged_source(context: AppContext, run: str, life: Sequence[Life], names: Sequence[str]) -> CurveSource:
    def read(query: CurveQuery) -> dict[str, Curve]:
        views_of_ranks = {
            member.rank: views(context.store, run, member.stream, query.first, query.last, MERGED) for member in life
        }
        merged_views = ranks.merged(views_of_ranks, max(member.world_size for member in life))
        return reader.draw(query, chunks_of_views(query, merged_views))

    return CurveSource(None, (0, life[0].began, life[0].stream), names, read)


def _placed(source: CurveSource, place: Place, axis: str, replaced: bool) -> CurveSource:
    """Converts the steps of a source to those of the run.

    Args:
        source: Source of curves.
        place: Its place on the step axis of the run.
        axis: `life` for unchanged steps.
        replaced: Keeps the steps that later attempts replace.
    """
    if axis == "life":
        return source._replace(place=place)
    return source._replace(place=place, read=on_axis(Place(place.begin) if replaced else place, source.read))


def _within(source: CurveSource, first: int, last: int) -> CurveSource:
    """Limits a source to these steps."""

    def read(query: CurveQuery) -> dict[str, Curve]:
        begin = max(first, query.first or 0)
        end = last if query.last is None else min(last, query.last)
        return source.read(replace(query, first=begin, last=end)) if begin <= end else {}

    return source._replace(read=read)


def _after(curve_sources: Sequence[CurveSource], names: Sequence[str], after: tuple[Any, ...]) -> list[CurveSource]:
    """Returns the sources and names after the item with this key."""
    *place, name = after
    if name not in names:
        raise unknown_token(name)
    remaining_names = names[names.index(name) + 1 :]
    return [
        source._replace(names=remaining_names) if source.key == tuple(place) else source
        for source in curve_sources
        if source.key >= tuple(place)
    ]


def _page(curve_sources: Sequence[CurveSource], query: CurveQuery, page_size: int) -> tuple[LabelledCurves, str | None]:
    """Returns one page of curves, and the next page's token if there may be more."""
    curves: list[Drawn] = []
    values = 0
    for source, name, curve in _read(curve_sources, query):
        curves.append(Drawn(source.rank, source.key[2], {name: curve}, source.place))
        values += len(curve.values)
        if len(curves) == page_size or values > MAX_VALUES:
            over = source is curve_sources[-1] and name == source.names[-1]
            return curves, None if over else token(*source.key, name)
    return curves, None


def _read(curve_sources: Sequence[CurveSource], query: CurveQuery) -> Iterator[tuple[CurveSource, str, Curve]]:
    at_once = max(1, MAX_VALUES // query.points)
    for source in curve_sources:
        for begin in range(0, len(source.names), at_once):
            curves_of = source.read(replace(query, names=source.names[begin : begin + at_once]))
            yield from ((source, name, curve) for name, curve in curves_of.items())


def _check_merged(names: Sequence[str], rank: str | None, stream: str | None) -> None:
    """Checks the parameters of a merged request.

    Raises:
        Problem: 422 for a rank, a stream, or a name that cannot be merged.
    """
    if rank is not None or stream is not None:
        raise Problem(422, "merged=true merges all ranks; omit rank and stream")
    alone = [name for name in names if name not in ranks.SCALARS and name.partition(":")[0] not in ranks.STATS]
    if alone:
        known = ", ".join((*ranks.SCALARS, *(f"{stat}:<tensor>" for stat in ranks.STATS)))
        raise Problem(422, f"{alone[0][:80]!r} cannot be merged; use {known}")


def names_of(names: str) -> list[str]:
    """Splits the requested names and removes duplicates.

    Raises:
        Problem: 422 for no name or too many.
    """
    unique = list(dict.fromkeys(unquote(name.strip()) for name in names.split(",") if name.strip()))
    if not 0 < len(unique) <= MAX_NAMES:
        raise Problem(422, f"names is {names[:80]!r}, {len(unique)} names; use 1 to {MAX_NAMES}, such as scale,loss")
    return unique
