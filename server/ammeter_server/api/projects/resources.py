"""GET /api/v1/projects/{project}: cost, weekly report, and readiness for production."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Response
from fastapi.responses import PlainTextResponse

from ammeter_server.auth.project_access import PathProject
from ammeter_server.context import AppContext, ContextDep
from ammeter_server.db.json_safe import instant, plain
from ammeter_server.fleet import markdown
from ammeter_server.fleet.project_cost import ProjectCost, project_cost
from ammeter_server.fleet.project_runs import facts_of
from ammeter_server.fleet.readiness import Readiness, readiness
from ammeter_server.fleet.weekly_report import DAY_NS, WeeklyReport, weekly_report
from ammeter_server.http.query_params import begin_of

router = APIRouter(prefix="/api/v1/projects/{project:path}", tags=["projects"])

Days = Annotated[int, Query(ge=1, le=366, description="Length of the period.")]
End = Annotated[datetime | None, Query(alias="until", description="Its end, not included; by default now.")]


class MarkdownText(PlainTextResponse):
    media_type = "text/markdown"


@dataclass(frozen=True)
class PeriodCost:
    """cost: of the runs that ended in the period."""

    project: str
    since: str | None
    until: str | None
    cut: bool
    cost: ProjectCost


@router.get("/cost", summary="Cost of a project", responses={200: {"model": PeriodCost}})
def read_cost(context: ContextDep, project: PathProject, days: Days = 7, until: End = None) -> Response:
    """Adds up the cost of the runs that ended in the days before `until`."""
    end = _end(until)
    since = end - days * DAY_NS
    facts, cut = facts_of(context.store, context.axes, context.settings.cost_per_hour, project, since, end)
    return _json(PeriodCost(project, instant(since), instant(end), cut, project_cost(facts)))


@router.get("/report", summary="Weekly report", responses={200: {"model": WeeklyReport}})
def read_report(context: ContextDep, project: PathProject, days: Days = 7, until: End = None) -> Response:
    """Returns failed runs, incidents, fallbacks and cost of the days before `until`, and what to do."""
    return _json(_report(context, project, days, until))


@router.get(
    "/report.md",
    summary="Weekly report as Markdown",
    response_class=MarkdownText,
    responses={200: {"content": {"text/markdown": {"schema": {"type": "string"}}}}},
)
def read_markdown_report(context: ContextDep, project: PathProject, days: Days = 7, until: End = None) -> MarkdownText:
    """Returns the same as Markdown."""
    return MarkdownText(markdown.of_report(_report(context, project, days, until), context.settings.links))


@router.get("/readiness", summary="Readiness for production", responses={200: {"model": Readiness}})
def read_readiness(context: ContextDep, project: PathProject) -> Response:
    """Checks baseline, mixed precision, checkpoint, restore and profile in the newest runs of the project."""
    return _json(readiness(context.store, context.settings.links, project))


def _report(context: AppContext, project: str, days: int, until: datetime | None) -> WeeklyReport:
    settings = context.settings
    return weekly_report(
        context.store, context.axes, settings.cost_per_hour, settings.links, project, _end(until), days
    )


def _end(until: datetime | None) -> int:
    """In ns. A report ends between the first and the last time that the database can store."""
    end = begin_of(until)
    return time.time_ns() if end is None else max(0, end)


def _json(content: Any) -> Response:
    return Response(msgspec.json.encode(plain(msgspec.to_builtins(content))), media_type="application/json")
