"""GET /api/v1/runs/{run}/series: values over steps, read from the packed chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import unquote

import msgspec
import numpy as np
from fastapi import APIRouter, Query, Response

from ammeter import block, merging, wire
from ammeter.merging import Life, lives
from ammeter_server.collector import Here
from ammeter_server.plain import number
from ammeter_server.points import choose
from ammeter_server.problems import Problem
from ammeter_server.runs import found
from ammeter_server.store import series as query

router = APIRouter(prefix="/api/v1/runs/{run}/series", tags=["runs"])

MOST_NAMES = 64
"""Names in one question. A page of charts asks for five; more is a dump, which is asked for in parts."""


@dataclass(frozen=True)
class Series:
    """One value over steps. times: seconds since the epoch. values: numbers, or "NaN", "Infinity", "-Infinity".

    rank: null for what all ranks come to; stream is then that of the lowest.
    """

    name: str
    rank: int | None
    stream: str
    steps: list[int]
    times: list[float]
    values: list[float | str]


@dataclass(frozen=True)
class SeriesList:
    items: list[Series]
    next_page_token: str | None = None


@router.get("", summary="Values over steps", responses={200: {"model": SeriesList}}, response_class=Response)
def read_series(
    here: Here,
    run: str,
    names: Annotated[
        str, Query(description="`loss,scale`; of a tensor `grad.norm:<tensor>`. %2C is a comma in a name.")
    ],
    rank: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
    stream: str | None = None,
    first: Annotated[int | None, Query(alias="from", ge=0, lt=2**63, description="First step.")] = None,
    last: Annotated[int | None, Query(alias="to", ge=0, lt=2**63, description="Last step.")] = None,
    points: Annotated[int, Query(ge=16, le=100_000, description="Points of one series at most.")] = 2000,
    merged: Annotated[bool, Query(description="What the gradients of all ranks, or all shards, come to.")] = False,
) -> Response:
    """One item per name and stream that measured it; steps without a measurement are left out. Where there are more
    steps than points, minima, maxima and non-finite values are kept. Merged: one item per name, at the steps that all
    ranks have, and one more for each time that the ranks were started again."""
    wanted = _asked(names)
    with here.store.reading() as connection:
        found(connection, run)
        sources = query.sources(connection, run, rank, stream)
        together = lives(query.lives(connection, run)) if merged else []
    told: list[tuple[int | None, str, Iterator[block.View]]]
    if merged:
        _check_merged(wanted, rank, stream)
        told = [(None, life[0].stream, _whole(here, run, life, first, last)) for life in together]
    else:
        told = [(each.rank, each.id, query.views(here.store, run, each.id, first, last)) for each in sources]
    items = []
    for at, source, views in told:
        for name, (steps, times, values) in curves(views, wanted, first, last).items():
            kept = choose(values, points)
            shown = [number(value) for value in values[kept].tolist()]
            items.append(Series(name, at, source, steps[kept].tolist(), (times[kept] / 1e9).tolist(), shown))
    return Response(msgspec.json.encode(SeriesList(items)), media_type="application/json")


def _check_merged(names: Sequence[str], rank: int | None, stream: str | None) -> None:
    """Raises a 422 problem for what has no meaning for all ranks together."""
    if rank is not None or stream is not None:
        raise Problem(422, "merged=true is about all ranks; leave rank and stream away")
    alone = [name for name in names if name not in merging.SCALARS and name.partition(":")[0] not in merging.STATS]
    if alone:
        known = ", ".join((*merging.SCALARS, *(f"{stat}:<tensor>" for stat in merging.STATS)))
        raise Problem(422, f"{alone[0][:80]!r} is each rank's own; merged are {known}")


def _whole(here: Here, run: str, life: Sequence[Life], first: int | None, last: int | None) -> Iterator[block.View]:
    ranks = {each.rank: query.views(here.store, run, each.stream, first, last) for each in life}
    return merging.merged(ranks, max(each.world_size for each in life))


Curve = tuple[block.Ints, block.Ints, block.Floats]


def curves(
    views: Iterator[block.View], names: Sequence[str], first: int | None = None, last: int | None = None
) -> dict[str, Curve]:
    """(steps, times, values) of each name that was measured between the steps, in the order asked."""
    parts: dict[str, list[Curve]] = {name: [] for name in names}
    schema, places = wire.Schema(), dict[str, int]()
    for view in views:
        if view.schema is not schema:
            schema, places = view.schema, places_of(view.schema, names)
        within = (view.steps >= (first or 0)) & (view.steps <= (view.steps[-1] if last is None else last))
        for name, place in places.items():
            column = view.values[place]
            there = within & block.measured(column)
            if there.any():
                parts[name].append((view.steps[there], view.times[there], column[there]))
    return {name: _joined(found) for name, found in parts.items() if found}


def places_of(schema: wire.Schema, names: Sequence[str]) -> dict[str, int]:
    """Name -> its column, of a scalar or, as `stat:tensor`, of a tensor's stat. Names it does not have are left out."""
    columns = {name: place for place, name in enumerate(schema.scalars)}
    tensors = {tensor.name: place for place, tensor in enumerate(schema.tensors)}
    for name in names:
        stat, _, tensor = name.partition(":")
        if name not in columns and stat in schema.stats and tensor in tensors:
            columns[name] = schema.span(stat).start + tensors[tensor]
    return {name: columns[name] for name in names if name in columns}


def _joined(parts: Sequence[Curve]) -> Curve:
    steps, times, values = zip(*parts, strict=True)
    return np.concatenate(steps), np.concatenate(times), np.concatenate(values)


def _asked(names: str) -> list[str]:
    wanted = list(dict.fromkeys(unquote(name.strip()) for name in names.split(",") if name.strip()))
    if not 0 < len(wanted) <= MOST_NAMES:
        raise Problem(
            422, f"names is {names[:80]!r}, {len(wanted)} names; ask for 1 to {MOST_NAMES}, such as scale,loss"
        )
    return wanted
