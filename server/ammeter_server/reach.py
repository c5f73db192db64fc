"""What a token of one project reaches: that project's runs. Of any other run it hears that it is not there."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from ammeter_server import auth
from ammeter_server.collector import Collector, Here
from ammeter_server.problems import Problem
from ammeter_server.store import streams as query

RUNS = ("run", "baseline")
"""What a path calls a run."""


async def own(connection: HTTPConnection, here: Here, caller: Annotated[auth.Caller, Depends(auth.read)]) -> None:
    """Refuses a path to another project's run or incident in the words for one that is not there."""
    if caller.project is not None:  # else there is nothing to look up, and no thread has to be waited for
        await run_in_threadpool(_check, connection, here, caller.project)


def unknown_run(run: str) -> Problem:
    return Problem(404, f"there is no run {run[:80]!r}; GET /api/v1/runs lists those there are")


def unknown_incident(incident: str) -> Problem:
    return Problem(404, f"there is no incident {incident[:120]!r}; GET /api/v1/incidents lists those there are")


def _within(
    caller: Annotated[auth.Caller, Depends(auth.read)],
    project: Annotated[str | None, Query(description="Only runs of this project.")] = None,
) -> str | None:
    if caller.project is None:
        return project
    if project not in (None, caller.project):
        raise Problem(404, f"there is no project {project[:80]!r} for the token {caller.name!r}")
    return caller.project


Project = Annotated[str | None, Depends(_within)]
"""The project that a list is of: the one asked for, else the token's; None for every one."""


def _check(connection: HTTPConnection, here: Collector, project: str) -> None:
    for name in RUNS:
        run = connection.path_params.get(name)
        if run is not None and not _owns(here, project, run):
            raise unknown_run(run)
    incident = connection.path_params.get("incident")
    if incident is not None and not _owns(here, project, incident.partition(".")[0]):
        raise unknown_incident(incident)


def _owns(here: Collector, project: str, run: str) -> bool:
    with here.store.reading() as connection:
        return query.run_project(connection, run) == project
