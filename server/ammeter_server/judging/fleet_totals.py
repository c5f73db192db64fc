"""Adds a run's incidents, steps, cost and outcomes to the totals of its project, each exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ammeter.counters import run as run_counters
from ammeter.verdicts.framework.finding import Finding
from ammeter_server.config.prices import Prices
from ammeter_server.db import Connection, Row
from ammeter_server.db.queries import judge as query
from ammeter_server.incidents.lifecycle import Incident, IncidentChange
from ammeter_server.judging.run_state import FINAL_STATES, last_lives
from ammeter_server.runs import cost, outcomes

MICRODOLLARS_PER_DOLLAR = 10**6
"""Totals are integers, so costs are counted in millionths of a dollar."""


def add_incidents(
    connection: Connection, run: Row[Any], before: Sequence[Incident], changes: Sequence[IncidentChange]
) -> None:
    """Adds new incidents, and tickets that have become pages.

    A counter cannot be decreased, so the ticket stays counted. The order is the same for all runs: no deadlocks.
    """
    severities = {incident.id: incident.severity for incident in before}
    counted = [
        (change.incident.verdict, change.incident.severity)
        for change in changes
        if change.new or change.incident.severity != severities.get(change.incident.id, change.incident.severity)
    ]
    for verdict, severity in sorted(counted):
        query.add_total(connection, run.project, "incidents", 1, verdict=verdict, severity=severity)


def add_progress(connection: Connection, run: Row[Any], streams: Sequence[Row[Any]], prices: Prices) -> dict[str, Any]:
    """Adds steps and cost since the last judgement. Returns all amounts of the run that the totals include."""
    ranks = [stream for stream in streams if stream.role == "rank"]
    counters = run_counters.of_run([(rank.rank, rank.counters) for rank in ranks])
    counted: dict[str, Any] = dict(run.fleet_progress)
    dollars = cost.of_run(prices, run.environment, ranks, run.tags)
    if dollars is not None and (more := round(dollars * MICRODOLLARS_PER_DOLLAR) - counted.get("cost", 0)) > 0:
        query.add_total(connection, run.project, "cost", more)
        counted["cost"] = counted.get("cost", 0) + more
    for outcome in ("applied", "skipped"):
        more = counters[outcome] - counted.get(outcome, 0)
        if more > 0:
            query.add_total(connection, run.project, "steps", more, outcome=outcome)
            counted[outcome] = counters[outcome]
    return counted


def add_outcomes(
    connection: Connection,
    run: Row[Any],
    streams: Sequence[Row[Any]],
    findings: Sequence[tuple[str, Finding]],
    comparisons: Mapping[str, Any],
    counted: dict[str, Any],
    state: str,
    until: int,
) -> None:
    """Adds each outcome of the run once, and records it in `counted`.

    Args:
        connection: Of the transaction.
        run: Its row.
        streams: Its streams.
        findings: Each with its stream.
        comparisons: The results across ranks and with the baseline.
        counted: Amounts that the totals include already; updated.
        state: Of the run.
        until: When the run ended, or now.
    """
    over = state in FINAL_STATES
    new: dict[str, str | None] = {}
    if "times" not in counted and run.tags.get(outcomes.EXPECTED):
        new["times"] = outcomes.of_time(run.tags, run.started, until, over=over)
    lives = last_lives(streams)
    last = [finding for stream, finding in findings if stream in {life.id for life in lives}]
    if over and "validations" not in counted:  # reading a long baseline takes several rounds
        new["validations"] = outcomes.of_validation(comparisons.get("baseline", {}).get("numbers", {}), last)
    if over and "outcome" not in counted:
        latest = query.latest_of(connection, run.id, [life.id for life in lives])
        byes = {life.bye_reason for life in lives}
        new["outcome"] = outcomes.of_run(state, byes, last, (values.get("loss") for values in latest))
    for name, outcome in new.items():
        if outcome is not None:
            counted[name] = outcome
            total = "runs" if name == "outcome" else name
            query.add_total(connection, run.project, total, 1, outcome=outcome)
