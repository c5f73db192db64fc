"""The runs of a project in a period: the facts that cost and report are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ammeter.wire.ranks import lives as lives_of
from ammeter_server.config.prices import Prices
from ammeter_server.curves.run_axis import ALONE, RunAxes, RunAxis
from ammeter_server.db import Connection, Row, Store
from ammeter_server.db.queries import runs as query
from ammeter_server.db.queries.steps.sources import life_of
from ammeter_server.runs import cost, outcomes
from ammeter_server.runs.ownership import labels_of
from ammeter_server.runs.rank_totals import fallbacks, newest_step

Outcome = Literal["ended", "diverged", "failed", "lost", "running"]

OUTCOMES: tuple[Outcome, ...] = ("ended", "diverged", "failed", "lost", "running")

UNSUCCESSFUL = frozenset({"diverged", "failed", "lost"})

RUNS_PER_QUERY = 200
"""Runs whose streams are in memory at once."""

MAX_FALLBACKS_PER_RUN = 8
"""Operators of a run that are listed, those with the most FLOPs."""

HOUR_NS = 3600 * 10**9


@dataclass(frozen=True)
class RunFacts:
    """One run.

    Attributes:
        outcome: As in the fleet totals; `running` for a run that goes on.
        dollars, replaced_dollars: None without a price.
        hours: Of all its ranks together.
        replaced_steps: Steps that a later attempt repeated.
        fallbacks: (operator, reason) -> share of the eligible FLOPs.
    """

    id: str
    name: str
    owner: str
    commit: str
    outcome: Outcome
    device: str
    last_step: int | None
    hours: float
    dollars: float | None
    replaced_steps: int
    replaced_dollars: float | None
    fallbacks: dict[tuple[str, str], float]

    @property
    def label(self) -> str:
        return self.name or self.id


def facts_of(
    store: Store, axes: RunAxes, prices: Prices, project: str, since: int, until: int
) -> tuple[list[RunFacts], bool]:
    """Returns the runs that ended in the period and those that go on, newest first.

    Also returns whether there are more than can be read.

    Args:
        since, until: in ns; the end is not included.
    """
    with store.reading() as connection:
        rows = query.in_period(connection, project, since, until)
    facts = []
    for begin in range(0, len(rows), RUNS_PER_QUERY):
        several = rows[begin : begin + RUNS_PER_QUERY]
        with store.reading() as connection:
            streams = _by_run(query.streams_of(connection, [row.id for row in several]))
            facts += [_facts(store, connection, axes, prices, row, streams.get(row.id, [])) for row in several]
    return facts, len(rows) >= query.MAX_SEARCHED


def _facts(
    store: Store, connection: Connection, axes: RunAxes, prices: Prices, row: Row[Any], streams: Sequence[Row[Any]]
) -> RunFacts:
    ranks = [stream for stream in streams if stream.role == "rank"]
    axis = _axis(store, connection, axes, row, ranks)
    newest = newest_step(ranks)
    labels, environment, tags = labels_of(row), row.environment or {}, row.tags
    return RunFacts(
        id=row.id,
        name=row.name,
        owner=labels.owner,
        commit=labels.commit,
        outcome=_outcome(row, ranks),
        device=str(environment.get("device") or ""),
        last_step=newest[1] + axis.offset(newest[0].id) if newest else None,
        hours=sum(map(cost.occupied_ns, ranks)) / HOUR_NS,
        dollars=cost.of_run(prices, environment, ranks, tags),
        replaced_steps=cost.replaced_steps(axis.lives),
        replaced_dollars=cost.of_replaced_steps(prices, environment, ranks, axis.lives, tags),
        fallbacks=fallbacks(ranks, MAX_FALLBACKS_PER_RUN),
    )


def _outcome(row: Row[Any], ranks: Sequence[Row[Any]]) -> Outcome:
    found = outcomes.now_of(row, ranks)
    return next(outcome for outcome in OUTCOMES if outcome == found)


def _axis(store: Store, connection: Connection, axes: RunAxes, row: Row[Any], ranks: Sequence[Row[Any]]) -> RunAxis:
    follows = bool((row.environment or {}).get("continues"))
    if follows or (len(ranks) > 1 and len(lives_of(map(life_of, ranks))) > 1):
        return axes.of(store, row.id, connection)
    return ALONE


def _by_run(rows: Iterable[Row[Any]]) -> dict[str, list[Row[Any]]]:
    grouped: dict[str, list[Row[Any]]] = {}
    for row in rows:
        grouped.setdefault(row.run, []).append(row)
    return grouped
