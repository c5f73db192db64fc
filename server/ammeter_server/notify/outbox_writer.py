"""Formats notifications of incidents and writes them into the outbox, in the transaction that changes the incidents.

A stateless channel gets a message for each opening and each end. A stateful channel has one row for each alert, which
is sent repeatedly until the incident is closed; a superseded incident passes its row on to its cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ammeter.wire import printable
from ammeter_server.config.links import Links
from ammeter_server.db import Connection, Row
from ammeter_server.db.queries import outbox
from ammeter_server.incidents.lifecycle import Incident, IncidentChange, Kind
from ammeter_server.incidents.runbook_text import alert_name, first_steps
from ammeter_server.notify.alertmanager import stamp
from ammeter_server.notify.channel import Channel, Message

REOPEN_QUIET_NS = 5 * 60 * 10**9
"""Between two messages that the same incident has opened. The second message of a flapping incident waits, and is
dropped where the incident is closed by then."""

MAX_NAME_CHARS = 300
"""Of a name from a run, in a title or a line."""


@dataclass(frozen=True)
class OutboxWriter:
    """channels: receivers. links: addresses in the messages."""

    channels: Sequence[Channel]
    links: Links

    def enqueue(self, connection: Connection, run: Row[Any], changes: Sequence[IncidentChange], now: int) -> bool:
        """Writes the notifications of these changes. Returns whether any is due now."""
        stateful = [channel for channel in self.channels if channel.stateful]
        for incident, heir in _successions(changes):
            for channel in stateful:
                outbox.transfer(connection, run.id, incident.id, heir.id, channel.name)
        due_now = [self._enqueue_change(connection, run, change, now) for change in changes]
        return any(due_now)

    def silence(self, connection: Connection, run: Row[Any], incident: Incident, by: str, now: int) -> None:
        """Sends a silence to stateful channels; the others get no messages while an incident is silenced."""
        for channel in self.channels:
            if channel.stateful and channel.wants(run.project, incident.severity):
                rows = outbox.live(connection, run.id, incident.id, channel.name)
                for row in (row for row in rows if row.kind == "opened"):
                    body = silence(row.message["alert"]["labels"], incident.silenced or now, by, now)
                    request = {"kind": "silenced", "silence": body}
                    outbox.add(connection, run.id, incident.id, channel.name, request, now, now)

    def _enqueue_change(self, connection: Connection, run: Row[Any], change: IncidentChange, now: int) -> bool:
        incident = change.incident
        channels = [channel for channel in self.channels if channel.wants(run.project, incident.severity)]
        kind = change.notification if incident.silenced is None or incident.silenced <= now else None
        stateless = [channel for channel in channels if kind and not channel.stateful]
        news = message(kind, incident, run.name, run.project, self.links) if kind and stateless else {}
        due_now = [_enqueue_news(connection, incident, channel.name, news, now) for channel in stateless]
        stateful = [channel for channel in channels if channel.stateful]
        firing = message("opened", incident, run.name, run.project, self.links) if stateful else {}
        if firing:
            firing["alert"] = alert(incident, firing["body"], run.name, run.project, self.links)
        due_now += [_sync_alert(connection, change, channel.name, firing, now) for channel in stateful]
        return any(due_now)


def _successions(changes: Iterable[IncidentChange]) -> Iterable[tuple[Incident, Incident]]:
    """Superseded incidents, each with the incident that takes its place without a notification."""
    causes = [other.incident for other in changes if other.incident.is_open and other.notification is None]
    for change in changes:
        if change.incident.closed_reason == "superseded":
            heirs = (
                cause
                for cause in causes
                if change.incident.verdict in {consequence["verdict"] for consequence in cause.consequences}
            )
            heir = next(heirs, None)
            if heir is not None:
                yield change.incident, heir


def _enqueue_news(connection: Connection, incident: Incident, channel: str, news: Message, now: int) -> bool:
    earlier = outbox.of(connection, incident.run, incident.id, channel)
    if news["kind"] == "resolved":
        for row in earlier:
            if row.kind == "opened" and row.due > now and not row.attempts:
                outbox.drop(connection, row)
                return False  # the end of the earlier opening was sent
        due = now
    else:
        similar = [
            row.created for row in earlier if row.kind == "opened" and row.message["severity"] == news["severity"]
        ]
        due = max(now, max(similar, default=0) + REOPEN_QUIET_NS) if similar else now
    outbox.add(connection, incident.run, incident.id, channel, news, now, due)
    return due == now


def _sync_alert(connection: Connection, change: IncidentChange, channel: str, current: Message, now: int) -> bool:
    """Makes the row of an alert match its incident. The labels identify an alert; its annotations may change."""
    incident = change.incident
    rows = [row for row in outbox.live(connection, incident.run, incident.id, channel) if row.kind != "silenced"]
    firing = [row for row in rows if row.kind == "opened"]
    if not incident.is_open:
        return _resolve_alerts(connection, firing, now)
    same = next((row for row in rows if row.message["alert"]["labels"] == current["alert"]["labels"]), None)
    if same is None and change.notification is None:  # the alert of a superseded incident
        for row in firing:
            outbox.change(connection, row, message=_with_annotations(row, current))
        return False
    due_now = same is None or same.kind == "resolved"
    if same is None:
        outbox.add(connection, incident.run, incident.id, channel, current, now, now)
    elif same.kind == "resolved":
        outbox.change(connection, same, message=current, **_restarted("opened", now))
    else:
        outbox.change(connection, same, message=_with_annotations(same, current))
    return _resolve_alerts(connection, [row for row in firing if row is not same], now) or due_now


def _resolve_alerts(connection: Connection, firing: Sequence[Row[Any]], now: int) -> bool:
    for row in firing:
        resolved = {**row.message, "kind": "resolved", "over": now}
        outbox.change(connection, row, message=resolved, **_restarted("resolved", now))
    return bool(firing)


def _restarted(kind: str, now: int) -> dict[str, Any]:
    """Values that make a row due at once with a new message, even while the old one is being sent."""
    values = {"state": "pending", "attempts": 0, "error": None, "claimed_until": 0}
    return {"kind": kind, "created": now, "due": now, **values}


def _with_annotations(row: Row[Any], current: Message) -> Message:
    sent: Message = row.message["alert"]
    return {**row.message, "alert": {**sent, "annotations": current["alert"]["annotations"]}}


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
        lines.append(f"Closed: {incident.closed_reason}.")
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
        "Also": "; ".join(consequence["title"] or consequence["verdict"] for consequence in incident.consequences),
    }
    lines += [f"{label}: {_short(fact)}" for label, fact in facts.items() if fact]
    lines += ["", f"Page: {links.run(incident.run)}", f"Runbook: {links.runbook(incident.verdict)}"]
    return lines


def _short(text: str) -> str:
    return printable.shortened(printable.name(text), MAX_NAME_CHARS)


def alert(incident: Incident, body: str, run_name: str, project: str, links: Links) -> dict[str, Any]:
    """An incident as an alert of Alertmanager's API."""
    labels = {
        "alertname": alert_name(incident.verdict),
        "severity": incident.severity,
        "project": project,
        "run": incident.run,
        "verdict": incident.verdict,
    }
    annotations = {
        "summary": title_of(incident, run_name),
        "description": body,
        "runbook_url": links.runbook(incident.verdict),
        "first_steps": first_steps(incident.verdict),
    }
    return {
        "labels": {name: value for name, value in labels.items() if value},
        "annotations": {name: value for name, value in annotations.items() if value},
        "startsAt": stamp(incident.opened),
        "generatorURL": links.run(incident.run),
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
