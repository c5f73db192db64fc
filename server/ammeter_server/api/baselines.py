"""Pins runs as baselines of their project or of their name."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query

from ammeter_server.api.runs import require_run
from ammeter_server.auth import callers
from ammeter_server.auth.project_access import Project
from ammeter_server.context import AppContext, ContextDep
from ammeter_server.db.json_safe import instant
from ammeter_server.db.queries import audit
from ammeter_server.db.queries import baselines as query
from ammeter_server.http.problems import Problem
from ammeter_server.runs.baselines import OF_PROJECT, Source, find_baseline

router = APIRouter(prefix="/api/v1", tags=["runs"])

Of = Annotated[
    Literal["project", "name"], Query(description="For which runs: all of the project, or those with the run's name.")
]
Changing = Annotated[callers.Caller, Depends(callers.change)]


@dataclass(frozen=True)
class PinnedBaseline:
    """A pin.

    Attributes:
        name: The name of the runs that it is for; null for all runs of the project.
        run_name: Null if the run no longer exists.
        pinned_by: The name of a token.
    """

    project: str
    name: str | None
    run: str
    run_name: str | None
    pinned: str | None
    pinned_by: str


@dataclass(frozen=True)
class PinnedBaselines:
    items: list[PinnedBaseline]


@dataclass(frozen=True)
class RunBaseline:
    """The baseline that applies to a run.

    Attributes:
        source: `run` if the run names it in its tags or config, `name` or `project` for a pin.
    """

    run: str
    name: str
    source: Source


@router.get("/baselines", summary="Pinned baselines")
def list_baselines(context: ContextDep, project: Project) -> PinnedBaselines:
    """Lists the runs that are pinned as baselines, by project and name."""
    return _listed(context, project)


@router.get("/runs/{run}/baseline", summary="The baseline of a run")
def read_baseline(context: ContextDep, run: str) -> RunBaseline:
    """Returns the baseline that the run names, else the one pinned for its name, else for its project.

    Status 404 if there is none.
    """
    with context.store.reading() as connection:
        found = find_baseline(connection, require_run(connection, run))
    if found is None:
        raise no_baseline(run)
    return RunBaseline(found.row.id, found.row.name, found.source)


@router.post("/runs/{run}/baseline", summary="Pin a run as a baseline")
def pin(context: ContextDep, run: str, caller: Changing, of: Of = "project") -> PinnedBaselines:
    """Pins the run for its project or its name, in place of the run that was pinned there.

    Can be repeated. Returns all pins of the project.
    """
    with context.store.writing() as connection:
        row = require_run(connection, run)
        name = _place(run, row.name, of)
        now = time.time_ns()
        query.pin(connection, row.project, name, row.id, caller.name, now)
        audit.add(connection, now, caller.name, "baseline.pinned", row.id, _detail(row.project, name))
    return _listed(context, row.project)


@router.delete("/runs/{run}/baseline", summary="Unpin a run")
def unpin(context: ContextDep, run: str, caller: Changing, of: Of = "project") -> PinnedBaselines:
    """Removes the pin of the run.

    Can be repeated. Returns the remaining pins of the project.
    """
    with context.store.writing() as connection:
        row = require_run(connection, run)
        name = _place(run, row.name, of)
        if query.unpin(connection, row.project, name, row.id):
            detail = _detail(row.project, name)
            audit.add(connection, time.time_ns(), caller.name, "baseline.unpinned", row.id, detail)
    return _listed(context, row.project)


def no_baseline(run: str) -> Problem:
    return Problem(
        404,
        f"run {run[:80]!r} has no baseline; pin one with POST /api/v1/runs/ID/baseline, or set the tag `baseline`",
    )


def _place(run: str, name: str, of: str) -> str:
    if of == "project":
        return OF_PROJECT
    if not name:
        raise Problem(422, f"run {run[:80]!r} has no name; pin it with of=project")
    return name


def _detail(project: str, name: str) -> str:
    return f"of project {project}" + (f", name {name}" if name else "")


def _listed(context: AppContext, project: str | None) -> PinnedBaselines:
    with context.store.reading() as connection:
        rows = query.listed(connection, project)
    return PinnedBaselines(
        [
            PinnedBaseline(row.project, row.name or None, row.run, row.run_name, instant(row.pinned), row.actor)
            for row in rows
        ]
    )
