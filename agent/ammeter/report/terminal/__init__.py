"""Prints the report on a terminal.

Data of a run appears as text, never as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ammeter.report.terminal.closing import closing_lines
from ammeter.report.terminal.facts import facts
from ammeter.wire import printable

if TYPE_CHECKING:
    from ammeter.report.diagnosis import Report, ReportedFinding

SEVERITY_STYLES = {"page": "bold white on red", "ticket": "bold black on yellow"}


def show(report: Report, console: Console | None = None) -> None:
    """Prints the report: run, numbers, findings with cause and fix, and the next step."""
    console = console or Console(highlight=False)
    document = report.as_json()
    run, summary = document["run"], document["summary"]
    title = Text(printable.line(f"{run['name'] or 'run'} · {run['project']}"), "bold")
    console.print(Rule(title, align="left", style="dim"))
    console.print(_table(facts(run, summary, document["baseline"])))
    for finding in report.findings:
        console.print()
        _print_finding(console, finding)
    console.print()
    events = _uncovered(report, document["seen"])
    if events:
        console.print(_table(_event_rows(events)))
        console.print()
    for line in closing_lines(report, summary, bool(events)):
        console.print(Text(printable.line(line)), soft_wrap=False)
    console.print()


def _table(rows: Iterable[tuple[str, str]]) -> Table:
    """Builds a table of labels and texts."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(label, Text(printable.line(text)))
    return table


def _print_finding(console: Console, reported: ReportedFinding) -> None:
    finding = reported.finding
    head = Text()
    head.append(f" {reported.severity.upper()} ", SEVERITY_STYLES[reported.severity])
    head.append(f" {printable.line(finding.title)}", "bold")
    head.append(f"  {finding.verdict}", "dim")
    console.print(head)
    console.print(Padding(_table(_finding_rows(reported)), (0, 0, 0, 2)))


def _finding_rows(reported: ReportedFinding) -> Iterator[tuple[str, str]]:
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


def _uncovered(report: Report, events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the event sentences that no finding covers."""
    reported = {finding.verdict for cause in report.findings for finding in (cause.finding, *cause.consequences)}
    return [event for event in events if event["verdict"] not in reported]


def _event_rows(events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yields event sentences with their step and line of the program."""
    label = "also seen"
    for event in events:
        place = f"{event['caller']}: " if event["caller"] else ""
        yield label, f"step {event['step']}, {place}{event['said']}"
        label = ""
