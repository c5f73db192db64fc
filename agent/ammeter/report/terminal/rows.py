"""The lines of findings and of other events in the report, as (label, text)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ammeter.report.diagnosis import Report, ReportedFinding


def finding_rows(reported: ReportedFinding) -> Iterator[tuple[str, str]]:
    """Yields cause, fix, place, steps, ranks and consequences of a finding."""
    finding = reported.finding
    yield "cause", finding.cause
    yield "fix", finding.fix
    places = (("line", finding.caller), ("tensor", finding.tensor), ("module", finding.module))
    place = ", ".join(f"{name} {value}" for name, value in places if value)
    if place:
        yield "where", place
    over = "" if finding.active else "; it is over"
    times = f"; {finding.times} times, first at {finding.earliest_step}" if finding.times > 1 else ""
    yield (
        "steps",
        f"since {finding.first_step}, found at {finding.opened_step}, last at {finding.last_step}{over}{times}",
    )
    ranks = ", ".join(map(str, reported.distinct_ranks))
    if len(reported.distinct_ranks) > 1:
        yield "ranks", ranks if finding.ranks else f"{ranks}; the numbers above are those of rank {reported.rank}"
    elif reported.rank:
        yield "rank", ranks
    for consequence in reported.consequences:
        severity, since = consequence.severity, consequence.first_step
        yield "led to", f"{consequence.title} ({consequence.verdict}, {severity}, since step {since})"


def uncovered_events(report: Report, events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the event sentences that no finding covers."""
    reported = {finding.verdict for cause in report.findings for finding in (cause.finding, *cause.consequences)}
    return [event for event in events if event["verdict"] not in reported]


def event_rows(events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yields event sentences with their step and line of the program."""
    label = "also seen"
    for event in events:
        place = f"{event['caller']}: " if event["caller"] else ""
        yield label, f"step {event['step']}, {place}{event['said']}"
        label = ""
