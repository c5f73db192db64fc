"""Turns findings into incidents: pure decisions on opening, updating, closing and notifying.

There is one incident per run and verdict; the cause carries its consequences.
- A new finding opens an incident and sends a notification. A ticket that becomes a page sends another one.
- An incident closes as recovered when no stream has its finding or a consequence of it any more; that sends a
  notification. A finding that returns within 15 minutes opens the same incident again, later a new one. Details of the
  finding are updated in between.
- An open incident that is found to be the consequence of another is superseded by that one. The cause inherits its
  acknowledgement, and sends a notification only where its severity is higher.
- When the run ends, tickets close as run ended, and pages once they are acknowledged, so that the person on call finds
  them. Unacknowledged pages close as expired after 24 hours.
- Silenced incidents send no notifications. An incident that is still open when its silence ends sends one.
- A lost rank (MOMENT_VERDICTS) closes when the run resumes, when it is acknowledged, or after 24 hours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from ammeter.verdicts.causality import Explained, as_consequence, gravest
from ammeter.verdicts.framework.finding import Finding
from ammeter_server.db.json_safe import plain

COOLDOWN_NS = 15 * 60 * 10**9
EXPIRY_NS = 24 * 3600 * 10**9

MOMENT_VERDICTS = frozenset({"run-lost"})
"""Verdicts on one moment: later data of the stream does not revoke them."""

REOPENABLE_REASONS = frozenset({"recovered", "superseded"})
"""An incident closed for one of these reasons opens again when its cause is active, if only by a consequence."""

Kind = Literal["opened", "resolved"]


class Incident(msgspec.Struct, frozen=True):
    """A row of the table incidents."""

    run: str
    id: str
    verdict: str
    number: int
    severity: str
    title: str
    state: str
    times: int
    opened: int
    first_step: int
    opened_step: int
    last_step: int
    stream: str
    rank: int
    cause: str
    fix: str
    acknowledged: int | None = None
    silenced: int | None = None
    closed: int | None = None
    closed_reason: str | None = None
    tensor: str | None = None
    module: str | None = None
    caller: str | None = None
    evidence: dict[str, Any] = {}
    consequences: list[dict[str, Any]] = []

    @property
    def is_open(self) -> bool:
        return self.state != "closed"


class Cause(msgspec.Struct, frozen=True):
    """One verdict over all streams of a run that have it; the finding is the first stream's."""

    stream: str
    rank: int
    finding: Finding
    consequences: list[Finding]
    active: bool
    times: int

    @property
    def severity(self) -> str:
        return gravest(self.finding, self.consequences)


class IncidentChange(msgspec.Struct, frozen=True):
    """An incident after a change. notification: its kind, if one is sent; new: whether it counts as a new incident."""

    incident: Incident
    notification: Kind | None = None
    new: bool = False


def reconcile_incidents(
    run: str, settled: bool, causes: Sequence[Cause], incidents: Sequence[Incident], now: int
) -> list[IncidentChange]:
    """Computes the changes of a run's incidents. settled: the run has ended or is lost."""
    newest = {incident.verdict: incident for incident in sorted(incidents, key=lambda incident: incident.number)}
    roots = {cause.finding.verdict: cause for cause in causes}
    superseded = _superseded(causes, newest)
    late = _explained_late(causes, newest, frozenset(roots))
    changes = [_open_or_update(run, cause, newest.get(verdict), superseded, now) for verdict, cause in roots.items()]
    changes += [
        IncidentChange(_closed(incident, "superseded", now))
        for incident in _unique(superseded)
        if incident.verdict not in roots
    ]
    changes += [IncidentChange(msgspec.structs.replace(incident, closed_reason="superseded")) for incident in late]
    done = {change.incident.id for change in changes}
    changes += [IncidentChange(incident) for incident in newest.values() if incident.id not in done]
    aged = [
        _end_silence(_close_if_over(change, roots.get(change.incident.verdict), settled, now), now)
        for change in changes
    ]
    return [change for change in aged if change.notification or change.incident not in incidents]


def merge_causes(explained: Iterable[Explained], ranks: Mapping[str, int], ended: frozenset[str]) -> list[Cause]:
    """Merges the explained findings of all streams into one cause per verdict, in their order.

    Args:
        explained: Findings with their consequences.
        ranks: Stream -> rank.
        ended: Streams that a newer attempt continues; their findings are inactive.
    """
    causes: dict[str, Cause] = {}
    for item in explained:
        finding = item.finding
        active = any(part.active for part in (finding, *item.consequences))
        active = active and item.stream not in ended
        before = causes.get(finding.verdict)
        if before is None:
            rank = next(iter(finding.ranks), ranks.get(item.stream, 0))
            causes[finding.verdict] = Cause(item.stream, rank, finding, list(item.consequences), active, finding.times)
            continue
        known = {consequence.verdict for consequence in before.consequences}
        causes[finding.verdict] = msgspec.structs.replace(
            before,
            consequences=before.consequences + [other for other in item.consequences if other.verdict not in known],
            active=before.active or active,
            times=before.times + finding.times,
        )
    return list(causes.values())


def acknowledged(incident: Incident, now: int) -> Incident:
    """Acknowledges an open incident; any other stays as it is."""
    if incident.state != "open":
        return incident
    return msgspec.structs.replace(incident, state="acknowledged", acknowledged=now)


def silenced(incident: Incident, until: int) -> Incident:
    """Silences an incident until a time; a closed one stays as it is."""
    return msgspec.structs.replace(incident, silenced=until) if incident.is_open else incident


def closed_by_hand(incident: Incident, now: int) -> IncidentChange:
    """Closes an incident for a person; it opens again only for a new occurrence."""
    if not incident.is_open:
        return IncidentChange(incident)
    return IncidentChange(_closed(incident, "by hand", now), "resolved")


def _superseded(causes: Iterable[Cause], newest: Mapping[str, Incident]) -> dict[str, list[Incident]]:
    """The verdict of a cause -> the open incidents that are its consequences."""
    superseded: dict[str, list[Incident]] = {}
    for cause in causes:
        for consequence in cause.consequences:
            incident = newest.get(consequence.verdict)
            if incident is not None and incident.is_open:
                superseded.setdefault(cause.finding.verdict, []).append(incident)
    return superseded


def _explained_late(causes: Iterable[Cause], newest: Mapping[str, Incident], roots: frozenset[str]) -> list[Incident]:
    """The recovered incidents whose finding is a consequence, as one rank's that was judged before the other ranks."""
    first_steps = {(other.verdict, other.first_step) for cause in causes for other in cause.consequences}
    return [
        incident
        for verdict, incident in newest.items()
        if incident.closed_reason == "recovered"
        and verdict not in roots
        and (verdict, incident.first_step) in first_steps
    ]


def _unique(superseded: Mapping[str, list[Incident]]) -> list[Incident]:
    return list({incident.id: incident for incidents in superseded.values() for incident in incidents}.values())


def _open_or_update(
    run: str, cause: Cause, before: Incident | None, superseded: Mapping[str, list[Incident]], now: int
) -> IncidentChange:
    inherited = superseded.get(cause.finding.verdict, [])
    if before is None:
        return _opened(run, cause, 1, inherited, now)
    updated = _with_finding(before, cause)
    worsens = cause.severity == "page" and before.severity == "ticket"
    if before.is_open:
        return IncidentChange(updated, "opened" if worsens else None)
    returns = (cause.active and (worsens or before.closed_reason in REOPENABLE_REASONS)) or cause.times > before.times
    if returns and now - (before.closed or 0) >= COOLDOWN_NS:
        return _opened(run, cause, before.number + 1, inherited, now)
    if not returns or not cause.active:
        return IncidentChange(updated, "opened" if worsens else None)
    opened = msgspec.structs.replace(updated, state="open", acknowledged=None, closed=None, closed_reason=None)
    return IncidentChange(opened, "opened")


def _opened(run: str, cause: Cause, number: int, inherited: Sequence[Incident], now: int) -> IncidentChange:
    finding = cause.finding
    notified = {incident.severity for incident in inherited}
    acknowledgements = [incident.acknowledged for incident in inherited if incident.acknowledged is not None]
    incident = Incident(
        run=run,
        id=f"{run}.{finding.verdict}.{number}",
        verdict=finding.verdict,
        number=number,
        severity=cause.severity,
        title=finding.title,
        state="acknowledged" if acknowledgements else "open",
        acknowledged=min(acknowledgements, default=None),
        times=cause.times,
        opened=now,
        first_step=finding.first_step,
        opened_step=finding.opened_step,
        last_step=finding.last_step,
        stream=cause.stream,
        rank=cause.rank,
        cause=finding.cause,
        fix=finding.fix,
    )
    silent = "page" in notified or (notified and cause.severity == "ticket")
    return IncidentChange(_with_finding(incident, cause), None if silent else "opened", new=True)


def _with_finding(incident: Incident, cause: Cause) -> Incident:
    """Updates an incident from its current finding. A page never becomes a ticket."""
    finding = cause.finding
    return msgspec.structs.replace(
        incident,
        severity="page" if "page" in (incident.severity, cause.severity) else "ticket",
        title=finding.title or finding.verdict,
        times=max(incident.times, cause.times),
        first_step=int(finding.first_step),
        opened_step=int(finding.opened_step),
        last_step=int(finding.last_step),
        stream=cause.stream,
        rank=cause.rank,
        tensor=plain(finding.tensor),
        module=plain(finding.module),
        caller=plain(finding.caller),
        cause=plain(finding.cause),
        fix=plain(finding.fix),
        evidence=plain(finding.evidence),
        consequences=[plain(as_consequence(consequence)) for consequence in cause.consequences],
    )


def _close_if_over(change: IncidentChange, cause: Cause | None, settled: bool, now: int) -> IncidentChange:
    """Closes an incident for which there is a reason."""
    incident = change.incident
    if not incident.is_open:
        return change
    reason = _close_reason(incident, cause, settled, now)
    if reason is None:
        return change
    notification = change.notification or ("resolved" if reason in ("recovered", "run ended") else None)
    return IncidentChange(_closed(incident, reason, now), notification, change.new)


def _close_reason(incident: Incident, cause: Cause | None, settled: bool, now: int) -> str | None:
    if cause is not None and not cause.active:
        return "recovered"
    lasting = not settled and incident.verdict not in MOMENT_VERDICTS
    if lasting:
        return None
    if settled and incident.severity == "ticket" and incident.verdict not in MOMENT_VERDICTS:
        return "run ended"
    if incident.state == "acknowledged":
        return "run ended" if settled else "acknowledged"
    return "expired" if now - incident.opened >= EXPIRY_NS else None


def _end_silence(change: IncidentChange, now: int) -> IncidentChange:
    incident = change.incident
    if incident.silenced is None or incident.silenced > now:
        return change
    audible = msgspec.structs.replace(incident, silenced=None)
    return IncidentChange(audible, change.notification or ("opened" if audible.is_open else None), change.new)


def _closed(incident: Incident, reason: str, now: int) -> Incident:
    return msgspec.structs.replace(incident, state="closed", closed=now, closed_reason=reason)
