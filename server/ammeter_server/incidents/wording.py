"""Formats incidents as notifications: plain text, cause and fix first."""

from __future__ import annotations

from typing import Any

from ammeter.wire import printable
from ammeter_server.config.links import Links
from ammeter_server.incidents.lifecycle import Incident, Kind

MAX_NAME_CHARS = 300
"""Of a name from a run, in a title or a line."""


def alert_name(verdict: str) -> str:
    """'scale-collapse' -> 'AmmeterScaleCollapse'."""
    return "Ammeter" + "".join(word.capitalize() for word in verdict.split("-"))


def title_of(incident: Incident, run_name: str) -> str:
    """Title, run and step of an incident."""
    return f"{_short(incident.title)}: {_short(run_name or incident.run)}, step {incident.first_step}"


def message(kind: Kind, incident: Incident, run_name: str, project: str, links: Links) -> dict[str, Any]:
    """The notification as {kind, severity, title, body}."""
    head = f"[{incident.severity}]" if kind == "opened" else "[resolved]"
    name = _short(run_name or incident.run)
    return {
        "kind": kind,
        "severity": incident.severity,
        "title": f"{head} {title_of(incident, run_name)}",
        "body": "\n".join(_lines(kind, incident, name, project, links)),
    }


def _lines(kind: Kind, incident: Incident, name: str, project: str, links: Links) -> list[str]:
    lines = []
    if kind == "resolved":
        lines.append(f"Over: {incident.closed_reason}.")
    lines += [f"Cause: {printable.sentence(incident.cause)}", f"Fix: {printable.sentence(incident.fix)}", ""]
    facts = {
        "Verdict": f"{incident.verdict} ({incident.severity})",
        "Run": f"{name} ({incident.run})",
        "Project": _short(project),
        "Step": f"{incident.first_step}, found at {incident.opened_step}, last seen at {incident.last_step}",
        "Rank": str(incident.rank),
        "Tensor": incident.tensor,
        "Module": incident.module,
        "Called at": incident.caller,
        "Also": "; ".join(f"{consequence['title'] or consequence['verdict']}" for consequence in incident.consequences),
    }
    lines += [f"{label}: {_short(fact)}" for label, fact in facts.items() if fact]
    lines += ["", f"Page: {links.run(incident.run)}", f"Runbook: {links.runbook(incident.verdict)}"]
    return lines


def _short(text: str) -> str:
    return printable.shortened(printable.name(text), MAX_NAME_CHARS)
