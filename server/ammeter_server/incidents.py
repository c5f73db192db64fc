"""GET /api/v1/incidents, and what people do with one: acknowledge it, close it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request

from ammeter_server import auth, handling
from ammeter_server.collector import Collector, Here
from ammeter_server.judge import Judge
from ammeter_server.pagination import PageSize, PageToken, key_of, token
from ammeter_server.plain import instant
from ammeter_server.problems import Problem
from ammeter_server.reach import Project, unknown_incident
from ammeter_server.runs import found
from ammeter_server.store import Row
from ammeter_server.store import incidents as query

router = APIRouter(prefix="/api/v1", tags=["incidents"])

State = Literal["open", "acknowledged", "closed"]
Severity = Literal["page", "ticket"]
States = Annotated[str | None, Query(description="open, acknowledged, closed; several between commas.")]


def _judge(request: Request) -> Judge:
    judge: Judge = request.app.state.judge
    return judge


Judging = Annotated[Judge, Depends(_judge)]
Changing = Annotated[auth.Caller, Depends(auth.change)]


@dataclass(frozen=True)
class Incident:
    """A finding as people handle it, with cause and fix in words. consequences: findings that it explains."""

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


@dataclass(frozen=True)
class IncidentList:
    items: list[Incident]
    next_page_token: str | None


@router.get("/incidents", summary="Incidents of all runs, newest first")
def list_incidents(
    here: Here,
    project: Project,
    state: States = None,
    severity: Severity | None = None,
    verdict: str | None = None,
    page_size: PageSize = 100,
    page_token: PageToken = None,
) -> IncidentList:
    """Incidents from the one that opened last."""
    wanted = {"states": _states(state), "severity": severity, "verdict": verdict, "project": project}
    return _listed(here, page_size, page_token, **wanted)


@router.get("/runs/{run}/incidents", summary="Incidents of a run, newest first")
def list_incidents_of_run(
    here: Here, run: str, state: States = None, page_size: PageSize = 100, page_token: PageToken = None
) -> IncidentList:
    """The run's incidents, the closed ones too."""
    with here.store.reading() as connection:
        found(connection, run)
    return _listed(here, page_size, page_token, run=run, states=_states(state))


@router.get("/incidents/{incident}", summary="One incident")
def read_incident(here: Here, incident: str) -> Incident:
    with here.store.reading() as connection:
        row = query.one(connection, incident)
    if row is None:
        raise unknown_incident(incident)
    return tell(row)


@router.post("/incidents/{incident}/acknowledge", summary="Somebody looks after it")
def acknowledge(here: Here, judge: Judging, caller: Changing, incident: str) -> Incident:
    """The incident, acknowledged. Twice is fine; one that closed without it is a 409."""
    handled = _told(here, incident, judge.acknowledge(incident, time.time_ns(), caller.name))
    if handled.acknowledged is None:
        raise Problem(409, f"incident {incident!r} is closed ({handled.closed_reason}); there is nothing to take on")
    return handled


@router.post("/incidents/{incident}/close", summary="It is over")
def close(here: Here, judge: Judging, caller: Changing, incident: str) -> Incident:
    """The incident, closed by hand. Twice is fine. It opens again when the verdict finds the same anew."""
    return _told(here, incident, judge.close(incident, time.time_ns(), caller.name))


def tell(row: Row[Any]) -> Incident:
    """The incident as people see it."""
    values = row._asdict()
    for name in ("opened", "acknowledged", "closed"):
        values[name] = instant(values[name])
    values["runbook"] = f"/runbooks/{row.verdict}"
    return Incident(**{name: values[name] for name in Incident.__dataclass_fields__})


def _listed(here: Collector, page_size: int, page_token: str | None, **wanted: Any) -> IncidentList:
    before = key_of(page_token, (int, str))
    with here.store.reading() as connection:
        rows = query.newest(connection, page_size + 1, before, **wanted)
    items = [tell(row) for row in rows[:page_size]]
    if len(rows) <= page_size:
        return IncidentList(items, None)
    return IncidentList(items, token(rows[page_size - 1].opened, rows[page_size - 1].id))


def _told(here: Collector, incident: str, changed: handling.Incident | None = None) -> Incident:
    """The incident as it stands. Raises a 404 problem for one that is not there; rings when it was changed."""
    if changed is not None:
        here.bell.set()
    with here.store.reading() as connection:
        row = query.one(connection, incident)
    if row is None:
        raise unknown_incident(incident)
    return tell(row)


def _states(given: str | None) -> list[str]:
    states = [each.strip() for each in (given or "").split(",") if each.strip()]
    for state in states:
        if state not in ("open", "acknowledged", "closed"):
            raise Problem(422, f"state is {state[:80]!r}; use open, acknowledged or closed, several between commas")
    return states
