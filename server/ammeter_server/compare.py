"""GET /api/v1/runs/{run}/compare/{baseline}: two runs side by side, at the steps that both have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from fastapi import APIRouter, Query, Response

from ammeter import verdicts
from ammeter.verdicts.causes import as_consequence, explain
from ammeter.verdicts.course import COLUMNS
from ammeter.verdicts.pair import Pair, agreed
from ammeter_server.collector import Here
from ammeter_server.courses import course
from ammeter_server.plain import number, plain
from ammeter_server.points import choose
from ammeter_server.runs import found

router = APIRouter(prefix="/api/v1/runs/{run}/compare", tags=["runs"])


@dataclass(frozen=True)
class Curves:
    """One column of both runs. Values that are no numbers are "NaN", "Infinity", "-Infinity"."""

    name: str
    steps: list[int]
    run: list[float | str]
    baseline: list[float | str]


@dataclass(frozen=True)
class Named:
    id: str
    name: str
    precision: str | None


@dataclass(frozen=True)
class Comparison:
    """numbers: the run against the baseline, null for what cannot be said. differences: settings, beside the precision.

    findings: as in a report, causes first.
    """

    run: Named
    baseline: Named
    numbers: dict[str, Any]
    differences: list[dict[str, Any]]
    findings: list[dict[str, Any]]
    series: list[Curves]


@router.get("/{baseline}", summary="Two runs side by side", responses={200: {"model": Comparison}})
def read_comparison(
    here: Here,
    run: str,
    baseline: str,
    points: Annotated[int, Query(ge=32, le=100_000, description="Points of one series at most.")] = 2000,
) -> Response:
    """What the run did against the baseline, of the lowest rank of each. Where there are more steps than points,
    minima, maxima and non-finite values of both are kept."""
    with here.store.reading() as connection:
        rows = found(connection, run), found(connection, baseline)
    mine, theirs = (course(here.store, row) for row in rows)
    pair = Pair(mine, theirs, delta=agreed(rows[0].tags.get("validation_delta")))
    numbers = pair.as_json()
    told = Comparison(
        Named(rows[0].id, rows[0].name, pair.run.precision),
        Named(rows[1].id, rows[1].name, pair.baseline.precision),
        {name: value for name, value in numbers.items() if name not in ("name", "differences")},
        numbers["differences"],
        list(_findings(pair)),
        list(_series(pair, points)),
    )
    return Response(msgspec.json.encode(plain(msgspec.to_builtins(told))), media_type="application/json")


def _findings(pair: Pair) -> Iterator[dict[str, Any]]:
    for each in explain([("", finding) for finding in verdicts.judge_runs(pair).findings]):
        consequences = [as_consequence(more) for more in each.consequences]
        yield {**msgspec.to_builtins(each.finding), "consequences": consequences}


def _series(pair: Pair, points: int) -> Iterator[Curves]:
    for name in COLUMNS:
        steps, mine, theirs = pair.run.curve(name).with_common(pair.baseline.curve(name))
        if len(steps):
            kept = np.union1d(choose(mine, points // 2), choose(theirs, points // 2))
            shown = ([number(value) for value in column[kept].tolist()] for column in (mine, theirs))
            yield Curves(name, steps[kept].tolist(), *shown)
