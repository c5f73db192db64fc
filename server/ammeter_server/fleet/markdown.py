"""The weekly report and the readiness check as Markdown, which is readable as plain text, too."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ammeter.verdicts.framework import wording
from ammeter.wire import printable
from ammeter_server.config.links import Links
from ammeter_server.fleet.project_cost import ProjectCost
from ammeter_server.fleet.readiness import Readiness
from ammeter_server.fleet.weekly_report import WeeklyReport

MAX_CELL_CHARS = 160
"""Of a name or a cause in a table; the page has all of it."""

EMPHASIS = re.compile(r"(?<!\w)_|_(?!\w)")
"""An underscore at the edge of a word; within a word it is no markup."""

MARKS = {True: "yes", False: "NO", None: "?"}


def of_report(report: WeeklyReport, links: Links) -> str:
    """Returns the weekly report."""
    return "\n".join(_report_lines(report, links)) + "\n"


def of_readiness(readiness: Readiness) -> str:
    """Returns the readiness check."""
    rows = [(MARKS[line.ready], line.name, line.found, line.todo) for line in readiness.lines]
    title = f"# Readiness of {text(readiness.project)}: {'ready' if readiness.ready else 'not ready'}"
    return "\n".join([title, "", *_table(("ready", "check", "found", "to do"), rows)]) + "\n"


def text(value: object) -> str:
    """Escapes markup in a text from a run."""
    plain = printable.shortened(printable.sentence(str(value)), MAX_CELL_CHARS)
    plain = plain.replace("&", "&amp;").replace("<", "&lt;")
    for mark in ("\\", "|", "*", "[", "]", "~", "#"):
        plain = plain.replace(mark, f"\\{mark}")
    return EMPHASIS.sub(r"\_", plain)


def dollars(amount: float | None) -> str:
    return "-" if amount is None else f"${amount:,.2f}"


def _report_lines(report: WeeklyReport, links: Links) -> Iterator[str]:
    yield f"# {text(report.project)}: {report.since[:10] if report.since else ''} to {(report.until or '')[:10]}"
    yield ""
    yield _summary(report)
    if report.cut:
        yield "The project has more runs than a report reads; these are the newest."
    yield from ("", "## What to do", "")
    yield from (
        f"{n}. {_full(act.todo)} ({_full(act.reason)}){_link(act.link)}" for n, act in enumerate(report.actions, 1)
    )
    if not report.actions:
        yield "Nothing."
    yield from _failed_lines(report, links)
    yield from ("", "## Incidents", "")
    yield from _table(
        ("verdict", "severity", "incidents", "runs", "open"),
        [(count.verdict, count.severity, count.incidents, count.runs, count.still_open) for count in report.incidents],
    )
    yield from ("", "## Operators in float32 that could run in low precision", "")
    yield from _table(
        ("operator", "reason", "runs", "FLOPs, at most"),
        [
            (fallback.operator, fallback.reason, fallback.runs, wording.percent(fallback.share))
            for fallback in report.fallbacks
        ],
    )
    yield from ("", "## Cost", "")
    yield from _cost_lines(report.cost, report.before)


def _summary(report: WeeklyReport) -> str:
    cost = report.cost
    parts = [f"{outcome.runs} {_OUTCOME_WORDS[outcome.name]}" for outcome in cost.outcomes]
    ended = f"{wording.count(cost.runs, 'run')} ended" + (f": {', '.join(parts)}" if parts else "")
    return (
        f"{ended}. {cost.running} still running. Cost {dollars(cost.dollars)}, before {dollars(report.before.dollars)}."
    )


_OUTCOME_WORDS = {"ended": "well", "diverged": "diverged", "failed": "failed", "lost": "lost"}


def _failed_lines(report: WeeklyReport, links: Links) -> Iterator[str]:
    yield from ("", "## Failed runs", "")
    yield from _table(
        ("run", "owner", "outcome", "step", "cost", "cause", "page"),
        [
            (
                run.name or run.run,
                run.owner,
                run.outcome,
                "-" if run.last_step is None else run.last_step,
                dollars(run.dollars),
                run.cause or "no incident",
                links.run(run.run),
            )
            for run in report.failed
        ],
    )
    if report.failed_not_listed:
        yield from ("", f"{report.failed_not_listed} more failed runs are not listed.")


def _cost_lines(cost: ProjectCost, before: ProjectCost) -> Iterator[str]:
    rows = [
        ("all ended runs", dollars(cost.dollars), dollars(before.dollars)),
        ("per run that ended well", dollars(cost.dollars_per_success), dollars(before.dollars_per_success)),
        ("diverged, failed or lost", dollars(cost.unsuccessful_dollars), dollars(before.unsuccessful_dollars)),
        ("repeated steps", dollars(cost.replaced_dollars), dollars(before.replaced_dollars)),
        *((device.name, dollars(device.dollars), "") for device in cost.devices if cost.dollars is not None),
    ]
    yield from _table(("", "this period", "before"), rows)
    if cost.unpriced_runs:
        yield from ("", f"{wording.count(cost.unpriced_runs, 'run')} without a price not included.")


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    rows = list(rows)
    if not rows:
        yield "None."
        return
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell if str(cell).startswith("http") else text(cell) for cell in map(str, row)) + " |"


def _full(value: str) -> str:
    """A text of Ammeter that is not shortened."""
    return printable.sentence(value).replace("<", "&lt;")


def _link(address: str) -> str:
    return f": {address}" if address else ""
