"""Formats notifications of incidents and writes them into the outbox, in the transaction that changes the incidents.

A stateless channel gets a message for each opening and each end. A stateful channel has one row for each alert, which
is sent repeatedly until the incident is closed; a superseded incident passes its row on to its cause. If other channels
receive the cause than its consequence, they get its opening, and those of the consequence its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ammeter_server.config.links import Links
from ammeter_server.config.notify_routes import Subject
from ammeter_server.db import Connection, Row
from ammeter_server.db.queries import outbox
from ammeter_server.incidents.lifecycle import Incident, IncidentChange
from ammeter_server.incidents.verdict_classes import class_of
from ammeter_server.notify.channel import Channel, Message, receivers
from ammeter_server.notify.messages import alert, message, silence
from ammeter_server.runs.ownership import RunLabels, labels_of

REOPEN_QUIET_NS = 5 * 60 * 10**9
"""Between two messages that the same incident has opened. The second message of a flapping incident waits, and is
dropped where the incident is closed by then."""


@dataclass(frozen=True)
class OutboxWriter:
    """channels: receivers. links: addresses in the messages."""

    channels: Sequence[Channel]
    links: Links

    def enqueue(self, connection: Connection, run: Row[Any], changes: Sequence[IncidentChange], now: int) -> bool:
        """Writes the notifications of these changes. Returns whether any is due now."""
        labels = labels_of(run)
        stateful = [channel for channel in self.channels if channel.stateful]
        for incident, heir in _silent_successions(changes):
            for channel in stateful:
                outbox.transfer(connection, run.id, incident.id, heir.id, channel.name)
        due_now = [self._enqueue_change(connection, labels, change, now) for change in changes]
        due_now += list(self._hand_over(connection, labels, changes, now))
        return any(due_now)

    def silence(self, connection: Connection, run: Row[Any], incident: Incident, by: str, now: int) -> None:
        """Sends a silence to stateful channels; the others get no messages while an incident is silenced."""
        for channel in self._receivers(labels_of(run), incident):
            if channel.stateful:
                rows = outbox.live(connection, run.id, incident.id, channel.name)
                for row in (row for row in rows if row.kind == "opened"):
                    body = silence(row.message["alert"]["labels"], incident.silenced or now, by, now)
                    request = {"kind": "silenced", "silence": body}
                    outbox.add(connection, run.id, incident.id, channel.name, request, now, now)

    def _receivers(self, run: RunLabels, incident: Incident) -> list[Channel]:
        verdict = incident.verdict
        subject = Subject(run.project, incident.severity, run.owner, verdict, class_of(verdict))
        return receivers(self.channels, subject)

    def _enqueue_change(self, connection: Connection, run: RunLabels, change: IncidentChange, now: int) -> bool:
        incident = change.incident
        channels = self._receivers(run, incident)
        kind = None if _is_silenced(incident, now) else change.notification
        stateless = [channel for channel in channels if kind and not channel.stateful]
        news = message(kind, incident, run, self.links) if kind and stateless else {}
        due_now = [_enqueue_news(connection, incident, channel.name, news, now) for channel in stateless]
        stateful = [channel for channel in channels if channel.stateful]
        firing = message("opened", incident, run, self.links) if stateful else {}
        if firing:
            firing["alert"] = alert(incident, firing["body"], run, self.links)
        due_now += [_sync_alert(connection, change, channel.name, firing, now) for channel in stateful]
        return any(due_now)

    def _hand_over(
        self, connection: Connection, run: RunLabels, changes: Sequence[IncidentChange], now: int
    ) -> Iterator[bool]:
        """Sends stateless channels the cause that goes to others than the incidents that it supersedes."""
        for heir, superseded in _handovers(changes, now):
            new = {channel.name for channel in self._receivers(run, heir.incident) if not channel.stateful}
            notified: set[str] = set()
            for incident in superseded:
                names = {channel.name for channel in self._receivers(run, incident) if not channel.stateful}
                notified |= names
                if not _is_silenced(incident, now):
                    end = message("resolved", incident, run, self.links)
                    yield from (_enqueue_news(connection, incident, name, end, now) for name in sorted(names - new))
            if heir.notification is None and heir.incident.state == "open" and not _is_silenced(heir.incident, now):
                begin = message("opened", heir.incident, run, self.links)
                yield from (
                    _enqueue_news(connection, heir.incident, name, begin, now) for name in sorted(new - notified)
                )


def _is_silenced(incident: Incident, now: int) -> bool:
    return incident.silenced is not None and incident.silenced > now


def _handovers(changes: Iterable[IncidentChange], now: int) -> Iterable[tuple[IncidentChange, list[Incident]]]:
    """Open causes, each with the incidents that it supersedes now."""
    changes = tuple(changes)
    superseded = [
        change.incident
        for change in changes
        if change.incident.closed_reason == "superseded" and change.incident.closed == now
    ]
    for heir in changes:
        explained = {consequence["verdict"] for consequence in heir.incident.consequences}
        inherited = [incident for incident in superseded if incident.verdict in explained]
        if heir.incident.is_open and inherited:
            yield heir, inherited


def _silent_successions(changes: Iterable[IncidentChange]) -> Iterable[tuple[Incident, Incident]]:
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
