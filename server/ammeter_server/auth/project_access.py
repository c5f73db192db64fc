"""Limits a token of one project to the runs of that project.

Runs may be named by their external ids. All other runs appear not to exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, Path, Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from ammeter_server.auth import callers
from ammeter_server.context import AppContext, ContextDep
from ammeter_server.db.queries import runs
from ammeter_server.http.problems import Problem
from ammeter_server.runs import run_ids

RUN_PARAMETERS = ("run", "baseline")
"""Path parameters that name a run."""


async def require_project_access(
    connection: HTTPConnection, context: ContextDep, caller: Annotated[callers.Caller, Depends(callers.read)]
) -> None:
    """Refuses other projects' runs and incidents with the error for a missing one.

    An external id of a run in the path is replaced by the run's own id.
    """
    if caller.project is not None:  # other callers need no query and no thread
        connection.path_params.update(
            await run_in_threadpool(_own_ids, connection.path_params, context, caller.project)
        )


def unknown_run(run: str) -> Problem:
    return Problem(404, f"there is no run {run[:80]!r}; GET /api/v1/runs lists all runs")


def unknown_incident(incident: str) -> Problem:
    return Problem(404, f"there is no incident {incident[:120]!r}; GET /api/v1/incidents lists all incidents")


async def _within(
    caller: Annotated[callers.Caller, Depends(callers.read)],
    project: Annotated[str | None, Query(description="Only runs of this project.")] = None,
) -> str | None:
    if caller.project is None:
        return project
    if project not in (None, caller.project):
        raise Problem(404, f"the token {caller.name!r} has no access to project {project[:80]!r}; omit the parameter")
    return caller.project


Project = Annotated[str | None, Depends(_within)]
"""The project of a list: the requested one, else the token's; None for all projects."""


def _of_path(
    context: ContextDep,
    caller: Annotated[callers.Caller, Depends(callers.read)],
    project: Annotated[str, Path(description="The name of a project.")],
) -> str:
    if caller.project in (None, project):
        with context.store.reading() as connection:
            if runs.of_project(connection, project, limit=1):
                return project
    raise Problem(404, f"there is no run in project {project[:80]!r}; GET /api/v1/runs lists all runs")


PathProject = Annotated[str, Depends(_of_path)]
"""The project in the path: one that the token may read and that has runs."""


def _own_ids(params: Mapping[str, Any], context: AppContext, project: str) -> dict[str, str]:
    """The own ids of the path's runs and incident.

    Raises:
        Problem: 404 if the project does not contain one of them.
    """
    own_ids = {}
    for name in RUN_PARAMETERS:
        if name in params:
            own_ids[name] = _own_id(context, project, params[name], unknown_run(params[name]))
    if "incident" in params:
        incident = params["incident"]
        run, dot, suffix = incident.partition(".")
        own_ids["incident"] = _own_id(context, project, run, unknown_incident(incident)) + dot + suffix
    return own_ids


def _own_id(context: AppContext, project: str, run: str, unknown: Problem) -> str:
    with context.store.reading() as connection:
        own_id = run_ids.find(connection, project, run)
    if own_id is None:
        raise unknown
    return own_id
