"""GET /api/v1/compare: two groups of runs with several seeds each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import unquote

import msgspec
from fastapi import APIRouter, Query, Response

from ammeter.verdicts.framework.groups.group_comparison import Member, compare_groups
from ammeter_server.auth.project_access import Project
from ammeter_server.context import AppContext, ContextDep
from ammeter_server.curves.run_histories import history_of
from ammeter_server.db import Row
from ammeter_server.db.json_safe import plain
from ammeter_server.http.problems import Problem
from ammeter_server.judging.baseline import metrics_of
from ammeter_server.runs.run_selection import SelectionError, select_runs

router = APIRouter(prefix="/api/v1/compare", tags=["runs"])

MAX_RUNS = 32
"""Runs of a group. Each is read completely; an interval hardly narrows beyond."""

Group = Annotated[
    str,
    Query(
        description="Runs between commas: ids, and in a project names or tags such as `recipe=bf16`, which mean all "
        "runs with them. A comma in a name is `%2C`, encoded once more in the address."
    ),
]


@dataclass(frozen=True)
class GroupRun:
    """value: of the metric at the compared steps; null if nothing was measured."""

    id: str
    name: str
    seed: Any
    value: float | str | None


@dataclass(frozen=True)
class RunGroup:
    """One group.

    Attributes:
        independent: Number of runs that are no repetitions of another one with the same seed.
        mean, deviation: Over the independent runs.
    """

    runs: list[GroupRun]
    independent: int
    mean: float | str | None
    deviation: float | str | None


@dataclass(frozen=True)
class GroupDecision:
    """Group A against group B.

    Attributes:
        decision: About A. `better` and `worse` only if the interval of the difference excludes 0.
        better: The direction of the metric; null if it is not known.
        first_step, last_step: The steps of the run that the values are from.
        difference, low, high: Mean of A minus mean of B, and the limits of Welch's t interval; null without a decision
            by it.
        differences: Settings that differ between the groups.
    """

    decision: Literal["better", "worse", "not distinguishable", "too few runs", "not comparable"]
    reasons: list[str]
    notes: list[str]
    metric: str | None
    better: Literal["lower", "higher"] | None
    first_step: int | None
    last_step: int | None
    difference: float | str | None
    low: float | str | None
    high: float | str | None
    degrees_of_freedom: float | str | None
    confidence: float
    differences: list[str]
    a: RunGroup
    b: RunGroup


@router.get("", summary="Two groups of runs", responses={200: {"model": GroupDecision}})
def compare(
    context: ContextDep,
    project: Project,
    a: Group,
    b: Group,
    metric: Annotated[str | None, Query(description="`val_loss`; by default a validation of all runs.")] = None,
    better: Annotated[
        Literal["lower", "higher"] | None, Query(description="By default as the tag `better.NAME` of the runs says.")
    ] = None,
    ignore: Annotated[str, Query(description="Settings that may differ within a group, between commas.")] = "",
) -> Response:
    """Compares a metric of two groups over their seeds.

    The decision rests on Welch's t interval. One run of each group decides nothing.
    """
    with context.store.reading() as connection:
        try:
            groups = [select_runs(connection, _selectors(name, given), project) for name, given in (("a", a), ("b", b))]
        except SelectionError as error:
            raise Problem(404, str(error)) from error
    for name, rows in zip("ab", groups, strict=True):
        if len(rows) > MAX_RUNS:
            raise Problem(422, f"{name} means {len(rows)} runs; use at most {MAX_RUNS}, by their ids or another tag")
    metrics = metrics_of(*groups[0], *groups[1]) + ([metric] if metric else [])
    first, second = (_members(context, rows, metrics) for rows in groups)
    ignored = frozenset(key.strip() for key in ignore.split(",") if key.strip())
    decision = compare_groups(first, second, metric, better, ignored).as_json()
    return Response(msgspec.json.encode(plain(decision)), media_type="application/json")


def _members(context: AppContext, rows: Sequence[Row[Any]], metrics: Sequence[str]) -> list[Member]:
    return [Member(row.id, history_of(context.store, row, metrics)) for row in rows]


def _selectors(name: str, given: str) -> list[str]:
    selectors = [unquote(selector.strip()) for selector in given.split(",") if selector.strip()]
    if not selectors:
        raise Problem(422, f"{name} is {given[:80]!r}; use ids of runs, or names or tags of a project, between commas")
    return selectors
