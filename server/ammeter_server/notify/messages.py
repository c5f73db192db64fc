"""Formats notifications: texts for people, and alerts and silences for Alertmanager."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ammeter.wire import printable
from ammeter_server.config.links import Links
from ammeter_server.incidents.lifecycle import Incident, Kind
from ammeter_server.incidents.next_action import first_action
from ammeter_server.incidents.runbook_text import alert_name, first_steps
from ammeter_server.incidents.verdict_classes import class_of
from ammeter_server.notify.alertmanager import stamp
from ammeter_server.runs.ownership import RunLabels

MAX_NAME_CHARS = 300
"""Of a name from a run, in a title or a line."""


def title_of(incident: Incident, run_name: str) -> str:
    """Title, run and step of an incident."""
    return f"{_short(incident.title)}: {_short(run_name or incident.run)}, step {incident.first_step}"


def message(kind: Kind, incident: Incident, run: RunLabels, links: Links) -> dict[str, Any]:
    """The notification as {kind, severity, title, body}."""
    head = f"[{incident.severity}]" if kind == "opened" else "[resolved]"
    return {
        "kind": kind,
        "severity": incident.severity,
        "title": f"{head} {title_of(incident, run.name)}",
        "body": "\n".join(_lines(kind, incident, run, links)),
    }


def _lines(kind: Kind, incident: Incident, run: RunLabels, links: Links) -> list[str]:
    lines = []
    if kind == "resolved":
        lines.append(f"Closed: {incident.closed_reason}.")
    else:
        lines.append(f"Now: {first_action(incident.verdict, incident.evidence)}")
    lines += [f"Cause: {printable.sentence(incident.cause)}", f"Fix: {printable.sentence(incident.fix)}", ""]
    facts = {
        "Verdict": f"{incident.verdict} ({incident.severity})",
        "Run": f"{_short(run.name or incident.run)} ({incident.run})",
        "Project": run.project,
        "Owner": run.owner,
        "Commit": run.commit,
        "Step": f"{incident.first_step}, found at {incident.opened_step}, last seen at {incident.last_step}",
        "Rank": str(incident.rank),
        "Tensor": incident.tensor,
        "Module": incident.module,
        "Called at": incident.caller,
        "Also": "; ".join(consequence["title"] or consequence["verdict"] for consequence in incident.consequences),
    }
    lines += [f"{label}: {_short(fact)}" for label, fact in facts.items() if fact]
    lines += [
        "",
        f"Page: {links.incident(incident.run, incident.verdict)}",
        f"Runbook: {links.runbook(incident.verdict)}",
    ]
    return lines


def _short(text: str) -> str:
    return printable.shortened(printable.name(text), MAX_NAME_CHARS)


def alert(incident: Incident, body: str, run: RunLabels, links: Links) -> dict[str, Any]:
    """An incident as an alert of Alertmanager's API."""
    labels = {
        "alertname": alert_name(incident.verdict),
        "severity": incident.severity,
        "project": run.project,
        "run": incident.run,
        "verdict": incident.verdict,
        "class": class_of(incident.verdict),
        "owner": _short(run.owner),
    }
    annotations = {
        "summary": title_of(incident, run.name),
        "description": body,
        "runbook_url": links.runbook(incident.verdict),
        "first_steps": first_steps(incident.verdict),
    }
    return {
        "labels": {name: value for name, value in labels.items() if value},
        "annotations": {name: value for name, value in annotations.items() if value},
        "startsAt": stamp(incident.opened),
        "generatorURL": links.incident(incident.run, incident.verdict),
    }


def silence(labels: Mapping[str, str], until: int, by: str, now: int) -> dict[str, Any]:
    """A silence of exactly one alert, whatever its severity becomes."""
    matchers = [
        {"name": name, "value": labels[name], "isRegex": False, "isEqual": True}
        for name in ("alertname", "run", "project")
        if name in labels
    ]
    return {
        "matchers": matchers,
        "startsAt": stamp(now),
        "endsAt": stamp(until),
        "createdBy": by or "Ammeter",
        "comment": "silenced in Ammeter",
    }
