"""Prints the report on a terminal.

Data of a run appears as text, never as markup.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ammeter.report.terminal.closing import closing_lines
from ammeter.report.terminal.facts import facts
from ammeter.report.terminal.rows import event_rows, finding_rows, uncovered_events
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
    events = uncovered_events(report, document["seen"])
    if events:
        console.print(_table(event_rows(events)))
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
    console.print(Padding(_table(finding_rows(reported)), (0, 0, 0, 2)))
