"""Writes notifications of incidents into the outbox, in the transaction that changes the incidents.

A stateless channel gets a message for each opening and each end. A stateful channel has one row for each alert, which
is sent repeatedly until the incident is closed; a superseded incident passes its row on to its cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ammeter_server.config.links import Links
from ammeter_server.db import Connection, Row
from ammeter_server.db.queries import outbox
from ammeter_server.incidents.lifecycle import Incident, IncidentChange
from ammeter_server.incidents.wording import message
from ammeter_server.notify.alertmanager import alert, silence
from ammeter_server.notify.channel import Channel, Message

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
        holding = [channel for channel in self.channels if channel.stateful]
        for incident, heir in _successions(changes):
            for channel in holding:
                outbox.transfer(connection, run.id, incident.id, heir.id, channel.name)
        told = [self._enqueue_change(connection, run, change, now) for change in changes]
        return any(told)

    def silence(self, connection: Connection, run: Row[Any], incident: Incident, by: str, now: int) -> None:
        """Sends a silence to stateful channels; the others get no messages while an incident is silenced."""
        for channel in self.channels:
            if channel.stateful and channel.wants(run.project, incident.severity):
                rows = outbox.live(connection, run.id, incident.id, channel.name)
                for row in (row for row in rows if row.kind == "opened"):
                    until = silence(row.message["alert"]["labels"], incident.silenced or now, by, now)
                    said = {"kind": "silenced", "silence": until}
                    outbox.add(connection, run.id, incident.id, channel.name, said, now, now)

    def _enqueue_change(self, connection: Connection, run: Row[Any], change: IncidentChange, now: int) -> bool:
        incident, tell = change.incident, change.tell
        wanting = [channel for channel in self.channels if channel.wants(run.project, incident.severity)]
        heard = tell if incident.silenced is None or incident.silenced <= now else None
        told = [channel for channel in wanting if heard and not channel.stateful]
        news = message(heard, incident, run.name, run.project, self.links) if heard and told else {}
        due = [_enqueue_news(connection, incident, channel.name, news, now) for channel in told]
        holding = [channel for channel in wanting if channel.stateful]
        body = message("opened", incident, run.name, run.project, self.links) if holding else {}
        held = body | {"alert": alert(incident, body["body"], run.name, run.project, self.links)} if body else {}
        due += [_sync_alert(connection, change, channel.name, held, now) for channel in holding]
        return any(due)


def _successions(changes: Iterable[IncidentChange]) -> Iterable[tuple[Incident, Incident]]:
    """Superseded incidents, each with the incident that takes its place without a notification."""
    quiet = [other.incident for other in changes if other.incident.is_open and other.tell is None]
    for change in changes:
        if change.incident.closed_reason == "superseded":
            of = (
                incident
                for incident in quiet
                if change.incident.verdict in {more["verdict"] for more in incident.consequences}
            )
            heir = next(of, None)
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
        alike = [row.created for row in earlier if row.kind == "opened" and row.message["severity"] == news["severity"]]
        due = max(now, max(alike, default=0) + REOPEN_QUIET_NS) if alike else now
    outbox.add(connection, incident.run, incident.id, channel, news, now, due)
    return due == now


def _sync_alert(connection: Connection, change: IncidentChange, channel: str, held: Message, now: int) -> bool:
    """Makes the row of an alert match its incident. The labels identify an alert; its annotations may change."""
    incident = change.incident
    rows = [row for row in outbox.live(connection, incident.run, incident.id, channel) if row.kind != "silenced"]
    firing = [row for row in rows if row.kind == "opened"]
    if not incident.is_open:
        return _resolve_alerts(connection, firing, now)
    same = next((row for row in rows if row.message["alert"]["labels"] == held["alert"]["labels"]), None)
    if same is None and change.tell is None:  # the alert of a superseded incident
        for row in firing:
            outbox.change(connection, row, message=_with_annotations(row, held))
        return False
    again = same is None or same.kind == "resolved"
    if same is None:
        outbox.add(connection, incident.run, incident.id, channel, held, now, now)
    elif same.kind == "resolved":
        outbox.change(connection, same, message=held, **_restarted("opened", now))
    else:
        outbox.change(connection, same, message=_with_annotations(same, held))
    return _resolve_alerts(connection, [row for row in firing if row is not same], now) or again


def _resolve_alerts(connection: Connection, firing: Sequence[Row[Any]], now: int) -> bool:
    for row in firing:
        over = {**row.message, "kind": "resolved", "over": now}
        outbox.change(connection, row, message=over, **_restarted("resolved", now))
    return bool(firing)


def _restarted(kind: str, now: int) -> dict[str, Any]:
    """Values that make a row due at once with a new message, even while the old one is being sent."""
    values = {"state": "pending", "attempts": 0, "error": None, "claimed_until": 0}
    return {"kind": kind, "created": now, "due": now, **values}


def _with_annotations(row: Row[Any], held: Message) -> Message:
    told: Message = row.message["alert"]
    return {**row.message, "alert": {**told, "annotations": held["alert"]["annotations"]}}
