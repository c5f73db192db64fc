"""A run is deleted, by DELETE /api/v1/runs/{run} or by `ammeter-server run delete`: with all that it ever said."""

from __future__ import annotations

import argparse
import time
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from ammeter_server.auth import callers
from ammeter_server.auth.project_access import unknown_run
from ammeter_server.cli.tokens import who
from ammeter_server.context import Here
from ammeter_server.db import Store, run_deletion
from ammeter_server.http.problems import Problem

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])


class NoRunError(Exception):
    """There is no such run."""


def _may(request: Request) -> callers.Caller:
    """Scope admin; a browser has to prove that the request is our page's own."""
    caller = callers.admin(request)
    if caller.by_browser and callers.CHANGE_HEADER not in request.headers:
        raise Problem(403, f"the request has no header {callers.CHANGE_HEADER}; send it with any value")
    return caller


@router.delete("/{run}", status_code=204, summary="Delete a run")
def delete_run(here: Here, run: str, caller: Annotated[callers.Caller, Depends(_may)]) -> Response:
    """Takes away everything of a run for good; totals of the fleet stay. Its shippers are answered 410 from then on.
    Needs scope admin, of every project."""
    if not run_deletion.delete(here.store, run, caller.name, time.time_ns()):
        raise unknown_run(run)
    return Response(status_code=204)


def delete(store: Store, asked: argparse.Namespace) -> None:
    """The command. SQLite's file is written anew, too."""
    if not run_deletion.delete(store, asked.run, who(), time.time_ns()):
        raise NoRunError(f"there is no run {asked.run[:80]!r}; give the id that its page has under Settings of the run")
    run_deletion.compact(store)
    print(f"run {asked.run} is deleted")
    if not store.is_sqlite:
        print("PostgreSQL keeps deleted rows in its files until VACUUM FULL has been there, and in its log and backups")
