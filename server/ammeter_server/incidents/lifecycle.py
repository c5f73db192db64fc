"""How findings become incidents: pure decisions on what to open, fold, update, close, and whom to tell.

One incident per run and verdict; the cause carries its consequences.
- A new finding opens one and is told. It is told again when it turns from ticket to page.
- It closes as recovered when no stream holds it or a consequence of it any more, and that is told. If it comes back
  within 15 minutes the same incident opens again; later a new one does. What is learnt of it meanwhile is written down.
- An open incident that turns out to be the consequence of another folds into that: superseded. The cause takes over
  its acknowledgement, and is told only where it is graver than what was told already.
- When the run ends, tickets close as run ended, pages only once acknowledged: whoever is on call must find them.
  Nobody's acknowledgement closes them as expired after 24 hours.
- While it is silenced nobody is told of it. It is told once more when the silence ends and it is still open.
- A lost rank (POINTS) closes when the run resumes, when it is acknowledged, or after 24 hours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from ammeter.verdicts.causality import Explained, as_consequence, gravest
from ammeter.verdicts.framework.finding import Finding
from ammeter_server.db.json_safe import plain

COOLDOWN = 15 * 60 * 10**9
EXPIRY = 24 * 3600 * 10**9

POINTS = frozenset({"run-lost"})
"""Verdicts on a moment: nothing that the stream says later takes them back."""

TAKEN_BACK = frozenset({"recovered", "superseded"})
"""Reasons to have closed that do not hold any more once it is active, if only by a consequence, and is a cause."""

Kind = Literal["opened", "resolved"]


class Incident(msgspec.Struct, frozen=True):
    """A row of incidents, its columns by their names."""

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
    """One verdict over all streams of a run that hold it; the finding is the one that stands first."""

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
    """An incident as it is from now on; what to tell about it, if anything; whether it counts as a new one."""

    incident: Incident
    tell: Kind | None = None
    new: bool = False


def reconcile_incidents(
    run: str, settled: bool, causes: Sequence[Cause], incidents: Sequence[Incident], now: int
) -> list[IncidentChange]:
    """What changes in a run's incidents. settled: the run has ended or is lost."""
    newest = {each.verdict: each for each in sorted(incidents, key=lambda each: each.number)}
    roots = {cause.finding.verdict: cause for cause in causes}
    folded = _folded(causes, newest)
    changes = [_open_or_update(run, cause, newest.get(verdict), folded, now) for verdict, cause in roots.items()]
    changes += [
        IncidentChange(_closed(each, "superseded", now)) for each in _unique(folded) if each.verdict not in roots
    ]
    done = {change.incident.id for change in changes}
    changes += [IncidentChange(each) for each in newest.values() if each.id not in done]
    aged = [_heard_again(_age(change, roots.get(change.incident.verdict), settled, now), now) for change in changes]
    return [change for change in aged if change.tell or change.incident not in incidents]


def merge(explained: Iterable[Explained], ranks: Mapping[str, int], ended: frozenset[str]) -> list[Cause]:
    """One cause per verdict from those of all streams, in their order.

    ranks: stream -> rank. ended: streams whose life another one has continued; what they held is over.
    """
    causes: dict[str, Cause] = {}
    for each in explained:
        finding = each.finding
        holds = any(held.active for held in (finding, *each.consequences))
        active = holds and each.stream not in ended
        before = causes.get(finding.verdict)
        if before is None:
            rank = next(iter(finding.ranks), ranks.get(each.stream, 0))
            causes[finding.verdict] = Cause(each.stream, rank, finding, list(each.consequences), active, finding.times)
            continue
        known = {consequence.verdict for consequence in before.consequences}
        causes[finding.verdict] = msgspec.structs.replace(
            before,
            consequences=before.consequences + [more for more in each.consequences if more.verdict not in known],
            active=before.active or active,
            times=before.times + finding.times,
        )
    return list(causes.values())


def acknowledged(incident: Incident, now: int) -> Incident:
    """The incident once a person has taken it on. One that is closed or acknowledged stays as it is."""
    if incident.state != "open":
        return incident
    return msgspec.structs.replace(incident, state="acknowledged", acknowledged=now)


def silenced(incident: Incident, until: int) -> Incident:
    """The incident once a person wants to hear nothing of it until then. One that is closed stays as it is."""
    return msgspec.structs.replace(incident, silenced=until) if incident.is_open else incident


def closed_by_hand(incident: Incident, now: int) -> IncidentChange:
    """The incident once a person has closed it; it opens again only for a new occurrence."""
    if not incident.is_open:
        return IncidentChange(incident)
    return IncidentChange(_closed(incident, "by hand", now), "resolved")


def _folded(causes: Iterable[Cause], newest: Mapping[str, Incident]) -> dict[str, list[Incident]]:
    """Cause's verdict -> the open incidents that turned out to be its consequences."""
    found: dict[str, list[Incident]] = {}
    for cause in causes:
        for consequence in cause.consequences:
            incident = newest.get(consequence.verdict)
            if incident is not None and incident.is_open:
                found.setdefault(cause.finding.verdict, []).append(incident)
    return found


def _unique(folded: Mapping[str, list[Incident]]) -> list[Incident]:
    return list({incident.id: incident for several in folded.values() for incident in several}.values())


def _open_or_update(
    run: str, cause: Cause, before: Incident | None, folded: Mapping[str, list[Incident]], now: int
) -> IncidentChange:
    inherited = folded.get(cause.finding.verdict, [])
    if before is None:
        return _opened(run, cause, 1, inherited, now)
    again = _described(before, cause)
    graver = cause.severity == "page" and before.severity == "ticket"
    if before.is_open:
        return IncidentChange(again, "opened" if graver else None)
    back = cause.active and (graver or before.closed_reason in TAKEN_BACK)
    anew = back or cause.times > before.times
    if anew and now - (before.closed or 0) >= COOLDOWN:
        return _opened(run, cause, before.number + 1, inherited, now)
    if not anew or not cause.active:
        return IncidentChange(again, "opened" if graver else None)
    opened = msgspec.structs.replace(again, state="open", acknowledged=None, closed=None, closed_reason=None)
    return IncidentChange(opened, "opened")


def _opened(run: str, cause: Cause, number: int, inherited: Sequence[Incident], now: int) -> IncidentChange:
    finding = cause.finding
    told = {incident.severity for incident in inherited}
    taken_on = [incident.acknowledged for incident in inherited if incident.acknowledged is not None]
    incident = Incident(
        run=run,
        id=f"{run}.{finding.verdict}.{number}",
        verdict=finding.verdict,
        number=number,
        severity=cause.severity,
        title=finding.title,
        state="acknowledged" if taken_on else "open",
        acknowledged=min(taken_on, default=None),
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
    silent = "page" in told or (told and cause.severity == "ticket")
    return IncidentChange(_described(incident, cause), None if silent else "opened", new=True)


def _described(incident: Incident, cause: Cause) -> Incident:
    """The incident with what the finding says now. It never turns from page to ticket."""
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
        consequences=[plain(as_consequence(each)) for each in cause.consequences],
    )


def _age(change: IncidentChange, cause: Cause | None, settled: bool, now: int) -> IncidentChange:
    """Closes what is over."""
    incident = change.incident
    if not incident.is_open:
        return change
    reason = _close_reason(incident, cause, settled, now)
    if reason is None:
        return change
    tell = change.tell or ("resolved" if reason in ("recovered", "run ended") else None)
    return IncidentChange(_closed(incident, reason, now), tell, change.new)


def _close_reason(incident: Incident, cause: Cause | None, settled: bool, now: int) -> str | None:
    if cause is not None and not cause.active:
        return "recovered"
    lasting = not settled and incident.verdict not in POINTS
    if lasting:
        return None
    if settled and incident.severity == "ticket" and incident.verdict not in POINTS:
        return "run ended"
    if incident.state == "acknowledged":
        return "run ended" if settled else "acknowledged"
    return "expired" if now - incident.opened >= EXPIRY else None


def _heard_again(change: IncidentChange, now: int) -> IncidentChange:
    incident = change.incident
    if incident.silenced is None or incident.silenced > now:
        return change
    heard = msgspec.structs.replace(incident, silenced=None)
    return IncidentChange(heard, change.tell or ("opened" if heard.is_open else None), change.new)


def _closed(incident: Incident, reason: str, now: int) -> Incident:
    return msgspec.structs.replace(incident, state="closed", closed=now, closed_reason=reason)
