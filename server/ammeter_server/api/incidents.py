"""GET /api/v1/incidents, and the actions on an incident: acknowledge, silence and close."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request

from ammeter.verdicts import BASELINE_VERDICTS
from ammeter_server.api.runs import Owner, require_run
from ammeter_server.auth import callers
from ammeter_server.auth.project_access import Project, unknown_incident
from ammeter_server.config.links import Links
from ammeter_server.context import AppContext, ContextDep
from ammeter_server.db import Row
from ammeter_server.db.json_safe import instant
from ammeter_server.db.queries import incidents as query
from ammeter_server.db.queries import outbox
from ammeter_server.http.pagination import PageSize, PageToken, key_of, token
from ammeter_server.http.problems import Problem
from ammeter_server.http.query_params import Ranks, Since, Until, begin_of, end_of, ranks_of
from ammeter_server.incidents import lifecycle
from ammeter_server.judging.manual_actions import ManualActions
from ammeter_server.runs import tool_links

router = APIRouter(prefix="/api/v1", tags=["incidents"])

State = Literal["open", "acknowledged", "closed"]
Severity = Literal["page", "ticket"]
HOUR_NS = 3600 * 10**9
RUN_VERDICTS = frozenset(verdict.id for verdict in BASELINE_VERDICTS)
"""Verdicts that compare all attempts of a run with a baseline; their steps are steps of the run."""
Hours = Annotated[float, Query(gt=0, le=7 * 24, description="Duration; at most a week.")]
States = Annotated[str | None, Query(description="open, acknowledged, closed; separated by commas.")]
Verdicts = Annotated[str | None, Query(description="`run-lost`; separated by commas.")]


def _manual_actions(request: Request) -> ManualActions:
    actions: ManualActions = request.app.state.manual_actions
    return actions


Actions = Annotated[ManualActions, Depends(_manual_actions)]
Changing = Annotated[callers.Caller, Depends(callers.change)]


@dataclass(frozen=True)
class Incident:
    """An incident: a finding with a lifecycle. `consequences` are the findings that it explains.

    Steps, also those in texts, are steps of the attempt, as counted by its process.

    Attributes:
        step_offset: Offset to add to these steps for the steps of the run. It is 0 for comparisons with a baseline,
            whose steps are already those of the run.
        links: Addresses in other tools, `log`, `board` and `silence`, where settings name them. Only in the list of all
            runs; others are in the context of the incident.
    """

    id: str
    run: str
    run_name: str
    project: str
    verdict: str
    severity: Severity
    title: str
    state: State
    opened: str | None
    acknowledged: str | None
    silenced: str | None
    closed: str | None
    closed_reason: str | None
    first_step: int
    opened_step: int
    last_step: int
    rank: int
    tensor: str | None
    module: str | None
    caller: str | None
    cause: str
    fix: str
    evidence: dict[str, Any]
    consequences: list[dict[str, Any]]
    runbook: str
    step_offset: int = 0
    owner: str = ""
    links: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Delivery:
    """Delivery of one notification to one channel.

    Attributes:
        channel: The URL without its secrets.
        state: `pending` until it is delivered; `told` after delivery to an Alertmanager, which is repeated until the
            alert ends; `sent`; `failed` after the last attempt.
        due: Time of the next attempt.
        error: The last error of the receiver.
    """

    channel: str
    kind: Literal["opened", "resolved", "silenced"]
    state: Literal["pending", "told", "sent", "failed"]
    attempts: int
    error: str | None
    created: str | None
    due: str | None
    sent: str | None


@dataclass(frozen=True)
class Deliveries:
    items: list[Delivery]


@dataclass(frozen=True)
class IncidentList:
    items: list[Incident]
    next_page_token: str | None


@router.get("/incidents", summary="Incidents of all runs, newest first")
def list_incidents(
    context: ContextDep,
    project: Project,
    state: States = None,
    severity: Severity | None = None,
    verdict: Verdicts = None,
    owner: Owner = None,
    since: Since = None,
    until: Until = None,
    page_size: PageSize = 100,
    page_token: PageToken = None,
) -> IncidentList:
    """Lists incidents of all runs, the most recently opened first."""
    wanted = _wanted(state, severity, verdict, since, until)
    listed, rows = _listed(context, page_size, page_token, project=project, owner=owner, **wanted)
    places = [tool_links.Place(row.run, row.stream, row.verdict) for row in rows]
    with context.store.reading() as connection:
        links = tool_links.of_incidents(connection, context.settings.links, places)
    return replace(listed, items=[replace(item, links=own) for item, own in zip(listed.items, links, strict=True)])


@router.get("/runs/{run}/incidents", summary="Incidents of a run, newest first")
def list_incidents_of_run(
    context: ContextDep,
    run: str,
    state: States = None,
    severity: Severity | None = None,
    verdict: Verdicts = None,
    rank: Ranks = None,
    since: Since = None,
    until: Until = None,
    page_size: PageSize = 100,
    page_token: PageToken = None,
) -> IncidentList:
    """Lists the run's incidents, including closed ones."""
    with context.store.reading() as connection:
        require_run(connection, run)
    wanted = _wanted(state, severity, verdict, since, until)
    return _listed(context, page_size, page_token, run=run, ranks=ranks_of(rank), **wanted)[0]


@router.get("/incidents/{incident}", summary="One incident")
def read_incident(context: ContextDep, incident: str) -> Incident:
    with context.store.reading() as connection:
        row = query.one(connection, incident)
    if row is None:
        raise unknown_incident(incident)
    return to_response(row, context.settings.links, _offset(context, row))


@router.post("/incidents/{incident}/acknowledge", summary="Acknowledge an incident")
def acknowledge(context: ContextDep, actions: Actions, caller: Changing, incident: str) -> Incident:
    """Acknowledges the incident.

    Can be repeated. Status 409 if it closed without an acknowledgement.
    """
    handled = _current(context, incident, actions.acknowledge(incident, time.time_ns(), caller.name))
    if handled.acknowledged is None:
        raise Problem(409, f"incident {incident!r} is closed ({handled.closed_reason}); it cannot be acknowledged")
    return handled


@router.post("/incidents/{incident}/silence", summary="Silence an incident")
def silence(context: ContextDep, actions: Actions, caller: Changing, incident: str, hours: Hours = 8) -> Incident:
    """Suppresses notifications of the incident for the given hours from now.

    If it is still open then, one more notification is sent. Status 409 if it is closed.
    """
    now = time.time_ns()
    handled = _current(context, incident, actions.silence(incident, now + int(hours * HOUR_NS), now, caller.name))
    if handled.state == "closed":
        raise Problem(409, f"incident {incident!r} is closed ({handled.closed_reason}); it sends no notifications")
    return handled


@router.get("/incidents/{incident}/deliveries", summary="Notifications of an incident")
def list_deliveries(context: ContextDep, incident: str) -> Deliveries:
    """Lists the incident's sent and pending notifications per channel, the oldest first."""
    with context.store.reading() as connection:
        if query.one(connection, incident) is None:
            raise unknown_incident(incident)
        rows = outbox.deliveries(connection, incident.partition(".")[0], incident)
    return Deliveries([_delivery(row) for row in rows])


@router.post("/incidents/{incident}/close", summary="Close an incident")
def close(context: ContextDep, actions: Actions, caller: Changing, incident: str) -> Incident:
    """Closes the incident by hand.

    Can be repeated. It opens again when the verdict finds the same fault again.
    """
    return _current(context, incident, actions.close(incident, time.time_ns(), caller.name))


def to_response(row: Row[Any], links: Links, step_offset: int = 0) -> Incident:
    """Converts a row to its JSON form."""
    values = row._asdict()
    for name in ("opened", "acknowledged", "silenced", "closed"):
        values[name] = instant(values[name])
    values["runbook"] = links.shown_runbook(row.verdict)
    values["step_offset"] = step_offset
    return Incident(**{name: values[name] for name in Incident.__dataclass_fields__ if name in values})


def _delivery(row: Row[Any]) -> Delivery:
    undelivered = row.state in outbox.LIVE
    return Delivery(
        channel=row.channel,
        kind=row.kind,
        state=row.state,
        attempts=row.attempts,
        error=row.error,
        created=instant(row.created),
        due=instant(row.due) if undelivered else None,
        sent=instant(row.sent),
    )


def _listed(
    context: AppContext, page_size: int, page_token: str | None, **wanted: Any
) -> tuple[IncidentList, Sequence[Row[Any]]]:
    """Returns a page of incidents, and their rows."""
    before = key_of(page_token, (int, str))
    with context.store.reading() as connection:
        rows = query.newest(connection, page_size + 1, before, **wanted)
    listed = rows[:page_size]
    items = [to_response(row, context.settings.links, _offset(context, row)) for row in listed]
    following = token(listed[-1].opened, listed[-1].id) if len(rows) > page_size else None
    return IncidentList(items, following), listed


def _current(context: AppContext, incident: str, changed: lifecycle.Incident | None = None) -> Incident:
    """Returns the current incident; wakes the judge if the incident was changed.

    Raises:
        Problem: 404 if there is no such incident.
    """
    if changed is not None:
        context.judge_wakeup.set()
    with context.store.reading() as connection:
        row = query.one(connection, incident)
    if row is None:
        raise unknown_incident(incident)
    return to_response(row, context.settings.links, _offset(context, row))


def _offset(context: AppContext, row: Row[Any]) -> int:
    """The step of the run at which the incident's attempt begins."""
    return 0 if row.verdict in RUN_VERDICTS else context.axes.of(context.store, row.run).offset(row.stream)


def _wanted(
    state: str | None, severity: Severity | None, verdict: str | None, since: datetime | None, until: datetime | None
) -> dict[str, Any]:
    """The filters of a list as arguments of the query."""
    verdicts = list(dict.fromkeys(name.strip() for name in (verdict or "").split(",") if name.strip()))
    opened = {"since": begin_of(since), "until": end_of(until)}
    return {"states": _states(state), "severity": severity, "verdicts": verdicts, **opened}


def _states(names: str | None) -> list[str]:
    states = list(dict.fromkeys(name.strip() for name in (names or "").split(",") if name.strip()))
    for state in states:
        if state not in ("open", "acknowledged", "closed"):
            raise Problem(422, f"state is {state[:80]!r}; use open, acknowledged, closed, separated by commas")
    return states
