"""Actions of persons on incidents: acknowledge, silence, close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ammeter_server.db import Connection, Row, Store
from ammeter_server.db.json_safe import instant
from ammeter_server.db.queries import audit
from ammeter_server.db.queries import judge as query
from ammeter_server.incidents.lifecycle import Incident, IncidentChange, acknowledged, closed_by_hand, silenced
from ammeter_server.judging.judge import log_incident, to_incident, with_new_state, write_changes
from ammeter_server.notify.outbox_writer import OutboxWriter

Decide = Callable[[Connection, Row[Any], Incident], IncidentChange]
"""Computes the change that an action makes to an incident of a run."""


class ManualActions:
    """Applies and audits actions of persons. Each returns the changed incident, or None for an unknown one."""

    def __init__(self, store: Store, outbox_writer: OutboxWriter) -> None:
        self._store = store
        self._outbox_writer = outbox_writer

    def acknowledge(self, incident: str, now: int, by: str = "somebody") -> Incident | None:
        return self._apply(incident, lambda _, __, before: IncidentChange(acknowledged(before, now)), now, by)

    def silence(self, incident: str, until: int, now: int, by: str = "somebody") -> Incident | None:
        """Suppresses the notifications of an incident until a time."""

        def decide(connection: Connection, run: Row[Any], before: Incident) -> IncidentChange:
            change = IncidentChange(silenced(before, until))
            if before.is_open:
                self._outbox_writer.silence(connection, run, change.incident, by, now)
                audit.add(connection, now, by, "incident.silenced", incident, f"until {instant(until)}")
            return change

        return self._apply(incident, decide, now, by)

    def close(self, incident: str, now: int, by: str = "somebody") -> Incident | None:
        return self._apply(incident, lambda _, __, before: closed_by_hand(before, now), now, by)

    def _apply(self, incident_id: str, decide: Decide, now: int, by: str) -> Incident | None:
        with self._store.writing() as connection:
            run = query.run_of(connection, incident_id.partition(".")[0])
            row = run and query.incident(connection, run.id, incident_id)
            if run is None or row is None:
                return None
            before = to_incident(row)
            change = decide(connection, run, before)
            write_changes(connection, self._outbox_writer, run, [change], now)
            if change.incident.state != before.state:
                audit.add(connection, now, by, f"incident.{change.incident.state}", incident_id, run.project)
            query.make_due(connection, run.id)
        for incident in with_new_state([before], [change]):
            log_incident(incident, run.project)
        return change.incident
