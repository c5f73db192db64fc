"""The report of a project over a week: failed runs, incidents, fallbacks, cost, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ammeter.verdicts.framework import wording
from ammeter_server.config.links import Links
from ammeter_server.config.prices import Prices
from ammeter_server.curves.run_axis import RunAxes
from ammeter_server.db import Row, Store
from ammeter_server.db.json_safe import instant
from ammeter_server.db.queries import baselines
from ammeter_server.db.queries import incidents as incident_query
from ammeter_server.fleet.project_cost import ProjectCost, project_cost
from ammeter_server.fleet.project_runs import UNSUCCESSFUL, RunFacts, facts_of

DAY_NS = 24 * 3600 * 10**9
MAX_FAILURES = 20
"""Failed runs that are listed, the most expensive first: a list that one person reads."""

MAX_INCIDENTS = 5_000
"""Incidents of the period that are read, the newest."""

MAX_FALLBACKS = 10
"""Operators that are listed, those of the most runs first."""

MAX_ACTIONS = 10
"""Actions that are listed, the first: nobody does more in a week."""

MIN_FALLBACK_SHARE = 0.05
"""As in the verdict fp32-fallback: a smaller share of the FLOPs is not worth a person's time."""

MIN_REPLACED_SHARE = 0.02
"""Of the time of all ended runs: from then on, repeated steps are worth shorter checkpoint intervals."""


@dataclass(frozen=True)
class FailedRun:
    """A run that diverged, failed or was lost.

    Attributes:
        verdict, cause, fix: Of its gravest incident; null without one.
    """

    run: str
    name: str
    owner: str
    commit: str
    outcome: str
    last_step: int | None
    dollars: float | None
    verdict: str | None
    cause: str | None
    fix: str | None


@dataclass(frozen=True)
class VerdictCount:
    """The incidents of one verdict. newest_run, fix: of the newest incident; still_open: not closed now."""

    verdict: str
    title: str
    severity: str
    incidents: int
    runs: int
    still_open: int
    newest_run: str
    fix: str
    runbook: str


@dataclass(frozen=True)
class FallbackCount:
    """An operator that could run in low precision and did not. share: the largest of the eligible FLOPs of a run."""

    operator: str
    reason: str
    runs: int
    share: float


@dataclass(frozen=True)
class Action:
    """One thing to do. link: where to begin; empty if the text says it."""

    todo: str
    reason: str
    link: str = ""


@dataclass(frozen=True)
class WeeklyReport:
    """The report.

    Attributes:
        until: The end, which is not included.
        days: The length of the period.
        cut: Whether the project has more runs than can be read; the numbers are then of the newest ones.
        before: The cost of the period before, of the same length.
    """

    project: str
    since: str | None
    until: str | None
    days: int
    cut: bool
    actions: list[Action]
    cost: ProjectCost
    before: ProjectCost
    failed: list[FailedRun]
    failed_not_listed: int
    incidents: list[VerdictCount]
    fallbacks: list[FallbackCount]


def weekly_report(
    store: Store, axes: RunAxes, prices: Prices, links: Links, project: str, until: int, days: int = 7
) -> WeeklyReport:
    """Builds the report of the days before `until`, in ns."""
    since = until - days * DAY_NS
    facts, cut = facts_of(store, axes, prices, project, since, until)
    earlier, _ = facts_of(store, axes, prices, project, since - days * DAY_NS, since)
    with store.reading() as connection:
        incidents = incident_query.newest(
            connection, MAX_INCIDENTS, None, project=project, since=since, until=until - 1
        )
        has_baseline = bool(baselines.listed(connection, project))
    failed = sorted(
        (run for run in facts if run.outcome in UNSUCCESSFUL), key=lambda run: (-(run.dollars or 0.0), run.id)
    )
    explained = {incident.run for incident in incidents}
    unexplained = [run for run in failed if run.id not in explained]
    counts = _counted(incidents, links)
    fallbacks = _fallbacks(facts)
    cost = project_cost(facts)
    return WeeklyReport(
        project=project,
        since=instant(since),
        until=instant(until),
        days=days,
        cut=cut,
        actions=list(_actions(cost, unexplained, counts, fallbacks, has_baseline, links))[:MAX_ACTIONS],
        cost=cost,
        before=project_cost([run for run in earlier if run.outcome != "running"]),
        failed=[_failed(run, incidents) for run in failed[:MAX_FAILURES]],
        failed_not_listed=max(0, len(failed) - MAX_FAILURES),
        incidents=counts,
        fallbacks=fallbacks,
    )


def _failed(run: RunFacts, incidents: Sequence[Row[Any]]) -> FailedRun:
    own = [incident for incident in incidents if incident.run == run.id and incident.closed_reason != "superseded"]
    worst = min(own, key=lambda incident: (incident.severity != "page", incident.first_step), default=None)
    return FailedRun(
        run.id,
        run.name,
        run.owner,
        run.commit,
        run.outcome,
        run.last_step,
        run.dollars,
        worst.verdict if worst else None,
        worst.cause if worst else None,
        worst.fix if worst else None,
    )


def _counted(incidents: Sequence[Row[Any]], links: Links) -> list[VerdictCount]:
    """Counts incidents by verdict, those of the most runs first."""
    by_verdict: dict[str, list[Row[Any]]] = {}
    for incident in incidents:  # the newest first
        if incident.closed_reason != "superseded":
            by_verdict.setdefault(incident.verdict, []).append(incident)
    counts = [
        VerdictCount(
            verdict=verdict,
            title=several[0].title or verdict,
            severity="page" if any(incident.severity == "page" for incident in several) else "ticket",
            incidents=len(several),
            runs=len({incident.run for incident in several}),
            still_open=sum(incident.state != "closed" for incident in several),
            newest_run=several[0].run,
            fix=several[0].fix,
            runbook=links.runbook(verdict),
        )
        for verdict, several in by_verdict.items()
    ]
    return sorted(counts, key=lambda count: (-count.runs, count.severity, count.verdict))


def _fallbacks(facts: Sequence[RunFacts]) -> list[FallbackCount]:
    shares: dict[tuple[str, str], list[float]] = {}
    for run in facts:
        for name, share in run.fallbacks.items():
            shares.setdefault(name, []).append(share)
    counts = [FallbackCount(op, reason, len(known), max(known)) for (op, reason), known in shares.items()]
    counts = [count for count in counts if count.share >= MIN_FALLBACK_SHARE]
    return sorted(counts, key=lambda count: (-count.runs, -count.share, count.operator))[:MAX_FALLBACKS]


def _actions(
    cost: ProjectCost,
    unexplained: Sequence[RunFacts],
    counts: Sequence[VerdictCount],
    fallbacks: Sequence[FallbackCount],
    has_baseline: bool,
    links: Links,
) -> Iterator[Action]:
    """Yields what the numbers ask for: pages first, then what most runs have, then what costs."""
    for count in sorted(counts, key=lambda count: count.severity):
        runs = wording.count(count.runs, "run")
        if count.severity == "page" and count.still_open:
            still = wording.count(count.still_open, "page")
            yield Action(count.fix, f"{count.title} in {runs}; {still} still open", links.run(count.newest_run))
        elif count.runs > 1:
            yield Action(count.fix, f"{count.title} in {runs}", count.runbook)
    if unexplained:
        reason = f"{wording.count(len(unexplained), 'failed run')} without an incident, such as {unexplained[0].label}"
        yield Action("Read the last events and the exception of the failed runs.", reason, links.run(unexplained[0].id))
    for fallback in fallbacks[:1]:
        reason = f"up to {wording.percent(fallback.share)} of the FLOPs of {wording.count(fallback.runs, 'run')}"
        todo = f"Let {fallback.operator} run in low precision; the reason is {fallback.reason}."
        yield Action(todo, reason, links.runbook("fp32-fallback"))
    if cost.dollars and cost.replaced_dollars and cost.replaced_dollars >= MIN_REPLACED_SHARE * cost.dollars:
        repeated = (
            f"{wording.count(cost.replaced_steps, 'step')} repeated after a restart, ${cost.replaced_dollars:,.2f}"
        )
        yield Action("Save checkpoints more often.", repeated, links.runbook("checkpoint-stale"))
    if cost.unpriced_runs:
        reason = f"{wording.count(cost.unpriced_runs, 'run')} without a price"
        yield Action("Add the devices to AMMETER_SERVER_COST_PER_HOUR.", reason)
    if not has_baseline and cost.runs:
        yield Action("Pin a float32 run as the baseline: ammeter baseline pin RUN --collector.", "no run is pinned")
