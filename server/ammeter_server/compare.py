"""GET /api/v1/runs/{run}/compare/{baseline}: two runs side by side, at the steps that both have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from fastapi import APIRouter, Query, Response

from ammeter import verdicts
from ammeter.block import Floats, Ints
from ammeter.merging import lives
from ammeter.verdicts.causes import as_consequence, explain
from ammeter.verdicts.course import COLUMNS, Curve
from ammeter.verdicts.pair import Pair, agreed
from ammeter_server import curves
from ammeter_server.collector import Collector, Here
from ammeter_server.courses import course
from ammeter_server.curves import Asked
from ammeter_server.links import Links
from ammeter_server.narrowing import First, Last
from ammeter_server.plain import number, plain
from ammeter_server.points import choose
from ammeter_server.runs import found
from ammeter_server.series import names_of
from ammeter_server.store import Row, series

router = APIRouter(prefix="/api/v1/runs/{run}/compare", tags=["runs"])

EVERY_VALUE = 2**40
"""Points: two curves that were thinned each by itself would have few steps in common."""


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

    findings: as in a report, causes first, each with the address of its runbook.
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
    names: Annotated[str, Query(description="Further series: `grad_norm`, of a tensor `grad.norm:<tensor>`.")] = "",
    first: First = None,
    last: Last = None,
    points: Annotated[int, Query(ge=32, le=100_000, description="Points of one series at most.")] = 2000,
) -> Response:
    """What the run did against the baseline, of the lowest rank of each. Series are at the steps that both have,
    between those that are asked for. Where there are more than points, minima, maxima and non-finite values of both
    are kept. What the run did is told of all of it."""
    more = names_of(names) if names else []
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
        list(_findings(pair, here.settings.links)),
        [
            _thinned(name, steps, mine, theirs, points)
            for name, (steps, mine, theirs) in [*_told(pair, first, last), *_further(here, rows, more, first, last)]
            if len(steps)
        ],
    )
    return Response(msgspec.json.encode(plain(msgspec.to_builtins(told))), media_type="application/json")


def _findings(pair: Pair, links: Links) -> Iterator[dict[str, Any]]:
    for each in explain([("", finding) for finding in verdicts.judge_runs(pair).findings]):
        consequences = [as_consequence(more) for more in each.consequences]
        runbook = links.shown_runbook(each.finding.verdict)
        yield {**msgspec.to_builtins(each.finding), "consequences": consequences, "runbook": runbook}


Common = tuple[Ints, Floats, Floats]
"""Steps that both have, and the values of each there."""


def _told(pair: Pair, first: int | None, last: int | None) -> Iterator[tuple[str, Common]]:
    for name in COLUMNS:
        steps, *values = pair.run.curve(name).with_common(pair.baseline.curve(name))
        asked = Asked((), 0, first, last).within(steps)
        mine, theirs = (column[asked] for column in values)
        yield name, (steps[asked], mine, theirs)


def _further(
    here: Collector, rows: Sequence[Row[Any]], names: Sequence[str], first: int | None, last: int | None
) -> Iterator[tuple[str, Common]]:
    """Of columns that no comparison is made of, every value that the first life of the lowest rank has."""
    asked = Asked([name for name in names if name not in COLUMNS], EVERY_VALUE, first, last)
    if not asked.names:
        return
    with here.store.reading() as connection:
        known = [lives(series.lives(connection, row.id)) for row in rows]
    mine, theirs = (
        curves.read(here.store, row.id, life[0][0].stream, asked) if life else {}
        for row, life in zip(rows, known, strict=True)
    )
    for name in asked.names:
        if name in mine and name in theirs:
            one, other = (Curve(each.steps, each.values) for each in (mine[name], theirs[name]))
            yield name, one.with_common(other)


def _thinned(name: str, steps: Ints, mine: Floats, theirs: Floats, points: int) -> Curves:
    kept = np.union1d(choose(mine, points // 2), choose(theirs, points // 2))
    run, baseline = ([number(value) for value in column[kept].tolist()] for column in (mine, theirs))
    return Curves(name, steps[kept].tolist(), run, baseline)
