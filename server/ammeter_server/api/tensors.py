"""GET /api/v1/runs/{run}/tensors: the recorded tensors and the latest value of each stat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
from fastapi import APIRouter, Query, Response

from ammeter.wire import columns as block
from ammeter.wire import frames
from ammeter_server.api.runs import require_run
from ammeter_server.context import ContextDep
from ammeter_server.curves.run_axis import StepAxis
from ammeter_server.db.json_safe import number
from ammeter_server.db.queries.steps.rows import latest_views
from ammeter_server.db.queries.steps.sources import Source, streams_with_steps
from ammeter_server.db.queries.steps.stream_info import ColumnSelection
from ammeter_server.http.pagination import PageSize, PageToken, key_of, token
from ammeter_server.http.problems import Problem

router = APIRouter(prefix="/api/v1/runs/{run}/tensors", tags=["runs"])

NEWEST_CHUNKS = 64
NEWEST_ROWS = 1000
"""How far back values are searched: sampled stats arrive every few dozen steps."""


@dataclass(frozen=True)
class TensorStat:
    """The latest value of one stat of one tensor, and the step of its measurement."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    numel: int
    stat: str
    value: float | str
    step: int
    rank: int
    stream: str


@dataclass(frozen=True)
class TensorStatList:
    items: list[TensorStat]
    next_page_token: str | None


@router.get("", summary="Tensors' latest values", responses={200: {"model": TensorStatList}}, response_class=Response)
def list_tensors(
    context: ContextDep,
    run: str,
    stat: Annotated[str, Query(description="Stats, separated by commas: grad.norm,grad.zeros")] = "grad.norm",
    rank: Annotated[int | None, Query(ge=0, lt=2**31, description="Default: the lowest rank.")] = None,
    axis: StepAxis = "run",
    page_size: PageSize = 1000,
    page_token: PageToken = None,
) -> Response:
    """Lists one item per tensor and stat of the rank's newest attempt, in parameter order.

    A stat without a recent measurement is omitted. Steps continue over the attempts of the run unless `axis` is `life`.
    """
    stats = _stats_of(stat)
    after = key_of(page_token, (int,))
    with context.store.reading() as connection:
        require_run(connection, run)
        sources = streams_with_steps(connection, run, None if rank is None else [rank])
    source = newest_life(sources)
    offset = context.axes.of(context.store, run).offset(source.id) if source and axis == "run" else 0
    places = _measured(context, run, source, stats, offset) if source else []
    remaining = [(place, item) for place, item in places if after is None or place > int(after[0])]
    page = remaining[:page_size]
    answer = TensorStatList([item for _, item in page], token(page[-1][0]) if len(remaining) > page_size else None)
    return Response(msgspec.json.encode(answer), media_type="application/json")


def newest_life(sources: Sequence[Source]) -> Source | None:
    """The most recent stream of the lowest rank."""
    lowest = min((source.rank for source in sources), default=None)
    return next((source for source in reversed(sources) if source.rank == lowest), None)


def _measured(
    context: ContextDep, run: str, source: Source, stats: Sequence[str], offset: int
) -> list[tuple[int, TensorStat]]:
    """Returns (place, item) per measured tensor and stat.

    Places stay the same while a run continues.
    """
    selection = ColumnSelection(stats=tuple(stats))
    views = latest_views(context.store, run, source.id, NEWEST_CHUNKS, selection)
    schema, latest = latest_values(views, stats)
    items = []
    for order, tensor in enumerate(schema.tensors):
        for index, stat in enumerate(stats):
            step, value = latest[index][0][order], latest[index][1][order]
            if step >= 0:
                item = TensorStat(
                    tensor.name, tensor.shape, tensor.dtype, tensor.numel, stat, number(float(value)),
                    int(step) + offset, source.rank, source.id,
                )  # fmt: skip
                items.append((order * len(stats) + index, item))
    return items


Latest = tuple[block.Ints, block.Floats]


def latest_values(newest_first: Iterator[block.View], stats: Sequence[str]) -> tuple[frames.Schema, list[Latest]]:
    """The newest schema, and per stat (step or -1, value) of each tensor.

    Older schemas are ignored.
    """
    schema = frames.Schema()
    latest: list[Latest] = []
    rows = 0
    for view in newest_first:
        if not latest:
            schema, count = view.schema, len(view.schema.tensors)
            latest = [(np.full(count, -1), np.zeros(count, np.float32)) for _ in stats]
        if view.schema != schema or rows > NEWEST_ROWS or all((steps >= 0).all() for steps, _ in latest):
            break
        rows += len(view)
        for stat, (steps, values) in zip(stats, latest, strict=True):
            _fill(steps, values, view, view.stat(stat))
    return schema, latest


def _fill(steps: block.Ints, values: block.Floats, view: block.View, columns: block.Floats) -> None:
    measured = block.measured(columns)
    missing = np.flatnonzero((steps < 0) & measured.any(axis=1))
    row = measured.shape[1] - 1 - measured[missing, ::-1].argmax(axis=1)
    steps[missing] = view.steps[row]
    values[missing] = columns[missing, row]


def _stats_of(stat: str) -> list[str]:
    stats = list(dict.fromkeys(name.strip() for name in stat.split(",") if name.strip()))
    unknown = [name for name in stats if name not in frames.STATS]
    if unknown or not stats:
        invalid = (unknown or [stat])[0][:80]
        raise Problem(422, f"stat is {invalid!r}; use some of {', '.join(frames.STATS)}")
    return stats
