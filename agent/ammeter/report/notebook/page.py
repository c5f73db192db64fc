"""Renders the report as HTML for a notebook: no script, nothing loaded, every text of the run escaped.

Colours are those of the notebook, or readable on light and dark ground.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from ammeter.report.notebook import svg
from ammeter.report.notebook.curves import Curve
from ammeter.report.terminal.closing import closing_lines
from ammeter.report.terminal.facts import facts
from ammeter.report.terminal.rows import event_rows, finding_rows, uncovered_events
from ammeter.wire import printable

if TYPE_CHECKING:
    from ammeter.report.diagnosis import Report, ReportedFinding

COLORS = {"page": ("#c62828", "#ffffff"), "ticket": ("#f2c744", "#111111")}
"""Ground and text of a severity's badge."""

TEMPLATE = "report.html.jinja"


def document(report: Report, curves: Sequence[Curve]) -> str:
    """Returns the report: curves, findings with cause and fix, facts."""
    found = report.as_json()
    run, summary = found["run"], found["summary"]
    events = uncovered_events(report, found["seen"])
    return _rendered(
        title=_title(run),
        state=_state(run),
        panels=svg.panels_of(curves),
        first=curves[0].first if curves else 0,
        last=curves[0].last if curves else 0,
        findings=[_finding(reported, list(finding_rows(reported))) for reported in report.findings],
        events=_lines(event_rows(events)),
        closing=[printable.line(line) for line in closing_lines(report, summary, bool(events))],
        facts=_lines(facts(run, summary, found["baseline"])),
    )


def short(report: Report, title: str) -> str:
    """Returns name and state of the run, and its findings without cause and fix."""
    run = report.as_json()["run"]
    findings = [_finding(reported, []) for reported in report.findings]
    step = f"last step {run['last_step']}" if run["last_step"] is not None else "no step yet"
    closing = [f"{step}; run.report() has curves{', causes and fixes' if findings else ''}."]
    return _rendered(
        title=_title(run), state=f"{_state(run)}, {printable.line(title)}", findings=findings, closing=closing
    )


def message(text: str) -> str:
    """Returns one sentence, if there is no report."""
    return _rendered(title="", state=printable.line(text))


def _rendered(**given: Any) -> str:
    empty: dict[str, Any] = {
        "panels": [],
        "first": 0,
        "last": 0,
        "findings": [],
        "events": [],
        "closing": [],
        "facts": [],
    }
    return _template().render(**{**empty, **given, "svg": svg})


def _title(run: dict[str, Any]) -> str:
    return printable.line(f"{run['name'] or 'run'} · {run['project']}")


def _state(run: dict[str, Any]) -> str:
    return printable.line(f"{run['id']}, {run['state']}" + (f" ({run['goodbye']})" if run["goodbye"] else ""))


def _finding(reported: ReportedFinding, rows: Sequence[tuple[str, str]]) -> dict[str, Any]:
    ground, text = COLORS[reported.severity]
    return {
        "severity": reported.severity.upper(),
        "ground": ground,
        "text": text,
        "title": printable.line(reported.finding.title),
        "verdict": reported.finding.verdict,
        "rows": _lines(rows),
    }


def _lines(rows: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(label, printable.line(text)) for label, text in rows]


@cache
def _template() -> Template:
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(TEMPLATE)
