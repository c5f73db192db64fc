"""GET /api/v1/runs/{run}/tensors/matrix: one stat of all tensors over steps, as a heat map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from fastapi import APIRouter, Query, Request, Response

from ammeter.verdicts.framework.placement import Place
from ammeter.wire import frames
from ammeter.wire.columns import Floats, Ints
from ammeter.wire.frames import Tensor
from ammeter_server.api.runs import require_run
from ammeter_server.api.tensors import newest_life
from ammeter_server.context import AppContext, ContextDep
from ammeter_server.curves.curve import CurveQuery
from ammeter_server.curves.curve_chunk import CurveChunk
from ammeter_server.curves.derived import ALL_POINTS
from ammeter_server.curves.float_json import between_brackets
from ammeter_server.curves.heatmap import HEADROOM, expanded, headroom_of, joined, ranges_of
from ammeter_server.curves.layer_map import MAX_UNPACKED_VALUES, NEVER, Cells, LifeStat, aligned
from ammeter_server.curves.reader import chunks_of
from ammeter_server.curves.run_axis import ALONE, StepAxis, chunks_on_axis, within
from ammeter_server.db.queries import events
from ammeter_server.db.queries.steps import sources as step_sources
from ammeter_server.db.queries.steps.stream_info import stream_info
from ammeter_server.http import etags
from ammeter_server.http.pagination import PageSize, PageToken, key_of, token
from ammeter_server.http.problems import Problem
from ammeter_server.http.query_params import First, Last

router = APIRouter(prefix="/api/v1/runs/{run}/tensors/matrix", tags=["runs"])

Order = Literal["forward", "parameters"]

ORDERED = "tensors.ordered"
"""The event with the order in which the modules of a model first run."""

FLOAT32 = "application/vnd.ammeter.matrix"

LAYOUT = (
    "Four bytes with the length of the header; the header, which is the JSON form without `values` and `at`; a float32"
    " per cell, tensor by tensor; then per cell the offset of the measurement from the first step of its range, as an"
    " unsigned number of `offset_bytes` bytes. Little-endian. A cell without a measurement has the bits 0x7fc0a3a3."
)


@dataclass(frozen=True)
class TensorRow:
    """The cells of one tensor.

    Attributes:
        values: Per range of steps a number, "NaN", "Infinity" or "-Infinity"; null without a measurement.
        at: The step at which each value was measured.
    """

    name: str
    numel: int
    values: list[float | str | None]
    at: list[int | None]


@dataclass(frozen=True)
class TensorMatrix:
    """A heat map.

    Attributes:
        order: Of the tensors: `forward`, in which their modules first ran, or `parameters`, in which they are
            registered.
        steps: The first step of each range, then the end of the last range.
    """

    stat: str
    rank: int | None
    stream: str | None
    order: Order
    steps: list[int]
    items: list[TensorRow]
    next_page_token: str | None


ARRAYS = {"schema": {"type": "string", "format": "binary", "description": LAYOUT}}
ANSWERS: dict[str, Any] = {"model": TensorMatrix, "content": {FLOAT32: ARRAYS}}


@router.get("", summary="Tensors by steps", responses={200: ANSWERS}, response_class=Response)
def read_matrix(
    context: ContextDep,
    request: Request,
    run: str,
    stat: Annotated[str, Query(description=f"One of {', '.join((*frames.STATS, HEADROOM))}.")] = "grad.norm",
    rank: Annotated[int | None, Query(ge=0, lt=2**31, description="Default: the lowest rank.")] = None,
    first: First = None,
    last: Last = None,
    axis: StepAxis = "run",
    cells: Annotated[int, Query(ge=1, le=2000, description="Maximum ranges of steps.")] = 200,
    show: Annotated[Literal["highest", "lowest"], Query(description="Value of a range to show.")] = "highest",
    order: Annotated[Order, Query(description="`forward`: of the first forward pass, if it is known.")] = "parameters",
    format: Annotated[Literal["json", "float32"], Query(description="float32: arrays after a JSON header.")] = "json",
    page_size: PageSize = 1000,
    page_token: PageToken = None,
) -> Response:
    """One row per tensor of the rank's newest attempt that has the stat.

    Each cell is a range of steps. A cell has the highest value of the range (or the lowest, with `show`), or the first
    non-finite value if there is one, and its step. The ranges of a long run differ a little in length, and may be fewer
    than `cells`. `headroom` is that of the largest gradient of the range: powers of two from it, multiplied by the loss
    scale of its step, to the largest number of float16. All pages have the steps of the first page. Steps continue over
    the attempts of the run, each of which fills its own range; with `axis=life` they are those of the newest attempt
    alone.

    With `order=forward` the tensors are in the order in which their modules first ran, if the process has recorded it;
    the answer says in which one they are. It is not known for a compiled model, or with the preset `light`.
    """
    if stat not in (HEADROOM, *frames.STATS):
        raise Problem(422, f"stat is {stat[:80]!r}; use one of {', '.join((*frames.STATS, HEADROOM))}")
    measured = "grad.absmax" if stat == HEADROOM else stat
    after = key_of(page_token, (int, int, int, int, int))
    with context.store.reading() as connection:
        require_run(connection, run)
        sources = step_sources.streams_with_steps(connection, run, None if rank is None else [rank])
        source = newest_life(sources)
        lives = [life for life in sources if source and life.rank == source.rank] if axis == "run" else [source]
        marks = step_sources.change_marks(connection, run, [life for life in lives if life])
        schema = stream_info(connection, run, source.id).schemas.get(source.schema or "") if source else None
        asks_order = source is not None and order == "forward" and (after is None or after[4])
        ordered = events.first_named(connection, run, source.id, ORDERED) if source and asks_order else None
    of_run = context.axes.of(context.store, run) if axis == "run" else ALONE
    placed = [Placed(row[0], of_run.place(row[0]), *_own_span(row)) for row in marks]
    tag = etags.of(request, marks, [(life.place.begin, life.place.end) for life in placed], ordered is not None)
    if tag.known:
        return tag.unchanged()
    tensors = schema.tensors if schema and measured in schema.stats else ()
    places = expanded((ordered or {}).get("order"), len(tensors))
    if places is not None:
        tensors = tuple(tensors[place] for place in places)
    begin, first, last, summarized_to, _ = (
        (int(part) for part in after) if after else (0, *_span(placed, first, last), NEVER, 0)
    )
    shown = tensors[begin : begin + page_size] if first <= last else ()
    edges, values = np.zeros(0, np.int64), list[Row]()
    if shown:
        lives_read = list(_lives(context, run, placed, measured, (first, last)))
        summarized_to = _summaries(lives_read, summarized_to)
        edges = aligned(ranges_of(first, last, cells), [part for life in lives_read for part in life.buckets()])
        values = _rows(lives_read, shown, edges, show == "lowest" and stat != HEADROOM)
    if stat == HEADROOM and values:
        scale = joined([chunk for life in placed for chunk in _scale(context, run, life, edges)])
        values = [headroom_of(row, *scale) for row in values]
    more = begin + page_size < len(tensors) and shown
    next_page = (begin + page_size, first, last, summarized_to, int(places is not None))
    header = {
        "stat": stat,
        "rank": source.rank if source else None,
        "stream": source.id if source else None,
        "order": "parameters" if places is None else "forward",
        "steps": edges.tolist(),
        "items": [{"name": tensor.name, "numel": tensor.numel} for tensor in shown],
        "next_page_token": token(*next_page) if more else None,
    }
    return tag.on(_as_arrays(header, values, edges) if format == "float32" else _as_json(header, values))


class Placed(NamedTuple):
    """An attempt's place on the step axis of the run.

    Attributes:
        first: Its own first step.
        last: Its own last step; less than `first` without steps.
    """

    stream: str
    place: Place
    first: int
    last: int


def _own_span(marks: tuple[Any, ...]) -> tuple[int, int]:
    """The first and last step of the attempt, in its own count."""
    *_, reached, begins = marks
    measured = [step for step in (begins or ())[1:] if step is not None]
    return min(measured, default=0), -1 if reached is None or not measured else reached


def _span(lives: Sequence[Placed], first: int | None, to: int | None) -> tuple[int, int]:
    """The first and last step to show: the requested range, limited to existing steps."""
    measured = [life for life in lives if life.first <= life.last]
    if not measured:
        return 0, -1
    begin = min(life.place.begin + life.first for life in measured)
    ends = ((life.place.begin + life.last, life.place.end) for life in measured)
    end = max(last if replaced_from is None else min(last, replaced_from - 1) for last, replaced_from in ends)
    return max(begin, first or 0), end if to is None else min(end, to)


Row = tuple[Floats, Ints]
"""The values of a tensor's ranges, and the steps of these values."""


def _lives(
    context: AppContext, run: str, placed: Sequence[Placed], stat: str, span: tuple[int, int]
) -> Iterator[LifeStat]:
    """Yields the stat of each attempt that has steps of the run between these two."""
    for life in placed:
        own = within(life.place, *span)
        if own is not None:
            first, last = own[0] or 0, NEVER if own[1] is None else own[1]
            yield LifeStat(context.store, run, life.stream, stat, life.place.begin, first, last)


def _summaries(lives: Sequence[LifeStat], summarized_to: int) -> int:
    """Reads the summaries of segments, if there is too much to read without them.

    summarized_to: The step of the run up to which the first page used summaries; `NEVER` on the first page.

    Returns:
        The same, for the next page.
    """
    if summarized_to == NEVER:
        few = sum(life.size for life in lives) <= MAX_UNPACKED_VALUES
        summarized_to = -1 if few else max(life.begin + life.compacted_to for life in lives)
    for life in lives:
        life.read_summaries(summarized_to)
    return summarized_to


def _rows(lives: Sequence[LifeStat], tensors: Sequence[Tensor], edges: Ints, lowest: bool) -> list[Row]:
    cells = Cells(len(tensors), edges, lowest)
    for life in lives:
        life.add_to(cells, [tensor.name for tensor in tensors])
    return list(cells.rows())


def _scale(context: AppContext, run: str, life: Placed, edges: Ints) -> Sequence[CurveChunk]:
    """The loss scale of every step of the ranges in an attempt."""
    own = within(life.place, int(edges[0]), int(edges[-1]) - 1)
    if own is None:
        return []
    read = chunks_of(context.store, run, life.stream, CurveQuery(["scale"], ALL_POINTS, *own))
    return chunks_on_axis(life.place, read)["scale"]


def _as_json(header: dict[str, Any], rows: Sequence[Row]) -> Response:
    items = [
        {**item, "values": msgspec.Raw(b"[" + text + b"]"), "at": [None if step < 0 else step for step in at.tolist()]}
        for item, text, (_, at) in zip(header["items"], between_brackets([row[0] for row in rows]), rows, strict=True)
    ]
    return Response(msgspec.json.encode({**header, "items": items}), media_type="application/json")


def _as_arrays(header: dict[str, Any], rows: Sequence[Row], edges: Ints) -> Response:
    size = 2 if int(np.diff(edges).max(initial=1)) <= 2**16 else 4
    header_json = msgspec.json.encode({**header, "offset_bytes": size})
    header_json += b" " * (-(4 + len(header_json)) % 8)
    values = (row.astype("<f4").tobytes() for row, _ in rows)
    offsets = (np.maximum(at - edges[:-1], 0).astype(f"<u{size}").tobytes() for _, at in rows)
    return Response(
        b"".join([len(header_json).to_bytes(4, "little"), header_json, *values, *offsets]), media_type=FLOAT32
    )
