"""GET /api/v1/runs/{run}/series: values over steps, read from the packed chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from fastapi import APIRouter, Query, Response

from ammeter import merging
from ammeter.merging import Life, lives
from ammeter_server import curves
from ammeter_server.collector import Here
from ammeter_server.curves import Asked
from ammeter_server.drawing import FLOAT32, LAYOUT, answer
from ammeter_server.problems import Problem
from ammeter_server.runs import found
from ammeter_server.store import series as query

router = APIRouter(prefix="/api/v1/runs/{run}/series", tags=["runs"])

MOST_NAMES = 256
"""Names in one question. A page of charts asks for five, one of all layers for some hundred."""

MERGED = query.Wanted(merging.SCALARS, merging.STATS)

Format = Literal["json", "float32"]


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


ARRAYS = {"schema": {"type": "string", "format": "binary", "description": LAYOUT}}
ANSWERS: dict[str, Any] = {"model": SeriesList, "content": {FLOAT32: ARRAYS}}


@router.get("", summary="Values over steps", responses={200: ANSWERS}, response_class=Response)
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
    format: Annotated[Format, Query(description="float32: arrays as they are, behind a header in JSON.")] = "json",
) -> Response:
    """One item per name and stream that measured it; steps without a measurement are left out. Where there are more
    steps than points, minima, maxima and non-finite values are kept. Merged: one item per name, at the steps that all
    ranks have, and one more for each time that the ranks were started again."""
    asked = Asked(_asked(names), points, first, last)
    with here.store.reading() as connection:
        found(connection, run)
        sources = query.sources(connection, run, rank, stream)
        together = lives(query.lives(connection, run)) if merged else []
    told: list[tuple[int | None, str, dict[str, curves.Curve]]]
    if merged:
        _check_merged(asked.names, rank, stream)
        told = [(None, life[0].stream, _whole(here, run, life, asked)) for life in together]
    else:
        told = [(each.rank, each.id, curves.read(here.store, run, each.id, asked)) for each in sources]
    return answer(told, format)


def _check_merged(names: Sequence[str], rank: int | None, stream: str | None) -> None:
    """Raises a 422 problem for what has no meaning for all ranks together."""
    if rank is not None or stream is not None:
        raise Problem(422, "merged=true is about all ranks; leave rank and stream away")
    alone = [name for name in names if name not in merging.SCALARS and name.partition(":")[0] not in merging.STATS]
    if alone:
        known = ", ".join((*merging.SCALARS, *(f"{stat}:<tensor>" for stat in merging.STATS)))
        raise Problem(422, f"{alone[0][:80]!r} is each rank's own; merged are {known}")


def _whole(here: Here, run: str, life: Sequence[Life], asked: Asked) -> dict[str, curves.Curve]:
    ranks = {each.rank: query.views(here.store, run, each.stream, asked.first, asked.last, MERGED) for each in life}
    views = merging.merged(ranks, max(each.world_size for each in life))
    return curves.drawn(asked, curves.of_views(asked, views))


def _asked(names: str) -> list[str]:
    wanted = list(dict.fromkeys(unquote(name.strip()) for name in names.split(",") if name.strip()))
    if not 0 < len(wanted) <= MOST_NAMES:
        raise Problem(
            422, f"names is {names[:80]!r}, {len(wanted)} names; ask for 1 to {MOST_NAMES}, such as scale,loss"
        )
    return wanted
