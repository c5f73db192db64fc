"""GET /api/v1/runs/{run}/compare/{baseline}: two runs side by side, at their common steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from fastapi import APIRouter, Query, Response

from ammeter import verdicts
from ammeter.verdicts.causality import as_consequence, explain
from ammeter.verdicts.framework.run_comparison import RunComparison, parse_share
from ammeter.verdicts.framework.run_history import COLUMNS, Curve, RunHistory
from ammeter.wire.columns import Floats, Ints
from ammeter_server.api.runs import found
from ammeter_server.api.series import names_of
from ammeter_server.config.links import Links
from ammeter_server.context import AppContext, ContextDep
from ammeter_server.curves import reader
from ammeter_server.curves.downsample import choose
from ammeter_server.curves.reader import CurveQuery
from ammeter_server.curves.run_histories import history_of
from ammeter_server.db.json_safe import number, plain
from ammeter_server.http.query_params import First, Last
from ammeter_server.judging.baseline import metrics_of

router = APIRouter(prefix="/api/v1/runs/{run}/compare", tags=["runs"])

EVERY_VALUE = 2**40
"""Points per curve, effectively unlimited: two curves that are reduced separately would have few common steps."""


@dataclass(frozen=True)
class Curves:
    """One column of both runs. Values that are not finite are "NaN", "Infinity" or "-Infinity"."""

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
    """Comparison of a run with a baseline.

    Attributes:
        numbers: Results of the comparison; null if unknown. `not_compared` gives the reason if two values are not
            comparable.
        differences: Settings that differ, apart from the precision, and the comparisons that each `forbids`.
        findings: As in a report, causes first, each with the address of its runbook.
    """

    run: Named
    baseline: Named
    numbers: dict[str, Any]
    differences: list[dict[str, Any]]
    findings: list[dict[str, Any]]
    series: list[Curves]


@router.get("/{baseline}", summary="Two runs side by side", responses={200: {"model": Comparison}})
def read_comparison(
    context: ContextDep,
    run: str,
    baseline: str,
    names: Annotated[str, Query(description="Further series: `grad_norm`, of a tensor `grad.norm:<tensor>`.")] = "",
    first: First = None,
    last: Last = None,
    points: Annotated[int, Query(ge=32, le=100_000, description="Points of one series at most.")] = 2000,
) -> Response:
    """Compares the lowest rank of each run, over all attempts.

    Values that are not comparable are null, and `not_compared` gives the reason. Series contain the common steps within
    the requested range. Beyond `points`, minima, maxima and non-finite values of both runs are kept. Numbers and
    findings always cover the whole run.
    """
    more = names_of(names) if names else []
    with context.store.reading() as connection:
        rows = found(connection, run), found(connection, baseline)
    metrics = metrics_of(*rows)
    mine, theirs = (history_of(context.store, row, metrics) for row in rows)
    pair = RunComparison(mine, theirs, delta=parse_share(rows[0].tags.get("validation_delta")))
    numbers = pair.as_json()
    told = Comparison(
        Named(rows[0].id, rows[0].name, pair.run.precision),
        Named(rows[1].id, rows[1].name, pair.baseline.precision),
        {name: value for name, value in numbers.items() if name not in ("name", "differences")},
        numbers["differences"],
        list(_findings(pair, context.settings.links)),
        [
            _thinned(name, steps, mine, theirs, points)
            for name, (steps, mine, theirs) in [*_told(pair, first, last), *_further(context, pair, more, first, last)]
            if len(steps)
        ],
    )
    return Response(msgspec.json.encode(plain(msgspec.to_builtins(told))), media_type="application/json")


def _findings(pair: RunComparison, links: Links) -> Iterator[dict[str, Any]]:
    for each in explain([("", finding) for finding in verdicts.judge_runs(pair).findings]):
        consequences = [as_consequence(more) for more in each.consequences]
        runbook = links.shown_runbook(each.finding.verdict)
        yield {**msgspec.to_builtins(each.finding), "consequences": consequences, "runbook": runbook}


Common = tuple[Ints, Floats, Floats]
"""The common steps, and the values of each run at them."""


def _told(pair: RunComparison, first: int | None, last: int | None) -> Iterator[tuple[str, Common]]:
    for name in dict.fromkeys((*COLUMNS, *pair.metrics)):
        yield name, _within(pair.run.curve(name), pair.baseline.curve(name), first, last)


def _further(
    context: AppContext, pair: RunComparison, names: Sequence[str], first: int | None, last: int | None
) -> Iterator[tuple[str, Common]]:
    """Yields columns beyond those of the comparison, with all values of the compared attempts."""
    further = [name for name in names if name not in COLUMNS and name not in pair.metrics]
    if not further:
        return
    mine, theirs = (_read(context, stream, CurveQuery(further, EVERY_VALUE)) for stream in (pair.run, pair.baseline))
    for name in further:
        if name in mine and name in theirs:
            yield name, _within(mine[name], theirs[name], first, last)


def _within(mine: Curve, theirs: Curve, first: int | None, last: int | None) -> Common:
    steps, *values = mine.with_common(theirs)
    asked = CurveQuery((), 0, first, last).within(steps)
    run, baseline = (column[asked] for column in values)
    return steps[asked], run, baseline


def _read(context: AppContext, of: RunHistory, asked: CurveQuery) -> dict[str, Curve]:
    """The columns of all attempts of a run, at the steps of the run."""
    found: dict[str, list[Curve]] = {}
    for part in of.parts:
        run, _, stream = part.stream.partition("/")
        for name, each in reader.read(context.store, run, stream, asked).items():
            found.setdefault(name, []).append(part.on_axis(Curve(each.steps, each.values)))
    return {
        name: Curve(np.concatenate([curve.steps for curve in some]), np.concatenate([curve.values for curve in some]))
        for name, some in found.items()
    }


def _thinned(name: str, steps: Ints, mine: Floats, theirs: Floats, points: int) -> Curves:
    kept = np.union1d(choose(mine, points // 2), choose(theirs, points // 2))
    run, baseline = ([number(value) for value in column[kept].tolist()] for column in (mine, theirs))
    return Curves(name, steps[kept].tolist(), run, baseline)
