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
from ammeter_server.api.baselines import no_baseline
from ammeter_server.api.runs import require_run
from ammeter_server.api.series import names_of
from ammeter_server.config.links import Links
from ammeter_server.context import AppContext, ContextDep
from ammeter_server.curves import reader
from ammeter_server.curves.curve import CurveQuery
from ammeter_server.curves.downsample import choose
from ammeter_server.curves.run_histories import history_of
from ammeter_server.db.json_safe import number, plain
from ammeter_server.http.query_params import First, Last
from ammeter_server.judging.baseline import metrics_of
from ammeter_server.runs.baselines import find_baseline

router = APIRouter(prefix="/api/v1/runs/{run}/compare", tags=["runs"])

EVERY_VALUE = 2**40
"""Points per curve, effectively unlimited: two curves that are reduced separately would have few common steps."""

Names = Annotated[str, Query(description="Further series: `grad_norm`; `grad.norm:<tensor>` for a tensor.")]
Points = Annotated[int, Query(ge=32, le=100_000, description="Maximum points per series.")]


@dataclass(frozen=True)
class Curves:
    """One column of both runs. Values that are not finite are "NaN", "Infinity" or "-Infinity"."""

    name: str
    steps: list[int]
    run: list[float | str]
    baseline: list[float | str]


@dataclass(frozen=True)
class RunName:
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

    run: RunName
    baseline: RunName
    numbers: dict[str, Any]
    differences: list[dict[str, Any]]
    findings: list[dict[str, Any]]
    series: list[Curves]


@router.get("", summary="A run beside its baseline", responses={200: {"model": Comparison}})
def read_baseline_comparison(
    context: ContextDep, run: str, names: Names = "", first: First = None, last: Last = None, points: Points = 2000
) -> Response:
    """Compares the run with its baseline, as /baseline returns it.

    Status 404 if it has none.
    """
    with context.store.reading() as connection:
        found = find_baseline(connection, require_run(connection, run))
    if found is None:
        raise no_baseline(run)
    return read_comparison(context, run, found.row.id, names, first, last, points)


@router.get("/{baseline}", summary="Two runs side by side", responses={200: {"model": Comparison}})
def read_comparison(
    context: ContextDep,
    run: str,
    baseline: str,
    names: Names = "",
    first: First = None,
    last: Last = None,
    points: Points = 2000,
) -> Response:
    """Compares the lowest rank of each run, over all attempts.

    Values that are not comparable are null, and `not_compared` gives the reason. Series contain the common steps within
    the requested range. Beyond `points`, minima, maxima and non-finite values of both runs are kept. Numbers and
    findings always cover the whole run.
    """
    extra_names = names_of(names) if names else []
    with context.store.reading() as connection:
        rows = require_run(connection, run), require_run(connection, baseline)
    metrics = metrics_of(*rows)
    own, other = (history_of(context.store, row, metrics) for row in rows)
    pair = RunComparison(own, other, delta=parse_share(rows[0].tags.get("validation_delta")))
    numbers = pair.as_json()
    comparison = Comparison(
        RunName(rows[0].id, rows[0].name, pair.run.precision),
        RunName(rows[1].id, rows[1].name, pair.baseline.precision),
        {name: value for name, value in numbers.items() if name not in ("name", "differences")},
        numbers["differences"],
        list(_findings(pair, context.settings.links)),
        [
            _thinned(name, steps, own, other, points)
            for name, (steps, own, other) in [
                *_common_curves(pair, first, last),
                *_further(context, pair, extra_names, first, last),
            ]
            if len(steps)
        ],
    )
    return Response(msgspec.json.encode(plain(msgspec.to_builtins(comparison))), media_type="application/json")


def _findings(pair: RunComparison, links: Links) -> Iterator[dict[str, Any]]:
    for cause in explain([("", finding) for finding in verdicts.judge_runs(pair).findings]):
        consequences = [as_consequence(consequence) for consequence in cause.consequences]
        runbook = links.shown_runbook(cause.finding.verdict)
        yield {**msgspec.to_builtins(cause.finding), "consequences": consequences, "runbook": runbook}


Common = tuple[Ints, Floats, Floats]
"""The common steps, and the values of each run at them."""


def _common_curves(pair: RunComparison, first: int | None, last: int | None) -> Iterator[tuple[str, Common]]:
    for name in dict.fromkeys((*COLUMNS, *pair.metrics)):
        yield name, _within(pair.run.curve(name), pair.baseline.curve(name), first, last)


def _further(
    context: AppContext, pair: RunComparison, names: Sequence[str], first: int | None, last: int | None
) -> Iterator[tuple[str, Common]]:
    """Yields columns beyond those of the comparison, with all values of the compared attempts."""
    further = [name for name in names if name not in COLUMNS and name not in pair.metrics]
    if not further:
        return
    own, other = (_read(context, stream, CurveQuery(further, EVERY_VALUE)) for stream in (pair.run, pair.baseline))
    for name in further:
        if name in own and name in other:
            yield name, _within(own[name], other[name], first, last)


def _within(own: Curve, other: Curve, first: int | None, last: int | None) -> Common:
    steps, *values = own.with_common(other)
    within = CurveQuery((), 0, first, last).within(steps)
    run, baseline = (column[within] for column in values)
    return steps[within], run, baseline


def _read(context: AppContext, of: RunHistory, query: CurveQuery) -> dict[str, Curve]:
    """The columns of all attempts of a run, at the steps of the run."""
    curves: dict[str, list[Curve]] = {}
    for part in of.parts:
        run, _, stream = part.stream.partition("/")
        for name, curve in reader.read(context.store, run, stream, query).items():
            curves.setdefault(name, []).append(part.on_axis(Curve(curve.steps, curve.values)))
    return {
        name: Curve(
            np.concatenate([curve.steps for curve in curves_of_name]),
            np.concatenate([curve.values for curve in curves_of_name]),
        )
        for name, curves_of_name in curves.items()
    }


def _thinned(name: str, steps: Ints, own: Floats, other: Floats, points: int) -> Curves:
    chosen = np.union1d(choose(own, points // 2), choose(other, points // 2))
    run, baseline = ([number(value) for value in column[chosen].tolist()] for column in (own, other))
    return Curves(name, steps[chosen].tolist(), run, baseline)
