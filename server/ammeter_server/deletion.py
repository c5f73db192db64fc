"""A run is deleted, by DELETE /api/v1/runs/{run} or by `ammeter-server run delete`: with all that it ever said."""

from __future__ import annotations

import argparse
import time
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from ammeter_server import auth
from ammeter_server.collector import Here
from ammeter_server.problems import Problem
from ammeter_server.reach import unknown_run
from ammeter_server.store import Store, deletions
from ammeter_server.token_command import who

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])


class NoRunError(Exception):
    """There is no such run."""


def _may(request: Request) -> auth.Caller:
    """Scope admin; a browser has to prove that the request is our page's own."""
    caller = auth.admin(request)
    if caller.by_browser and auth.CHANGE_HEADER not in request.headers:
        raise Problem(403, f"the request has no header {auth.CHANGE_HEADER}; send it with any value")
    return caller


@router.delete("/{run}", status_code=204, summary="Delete a run")
def delete_run(here: Here, run: str, caller: Annotated[auth.Caller, Depends(_may)]) -> Response:
    """Takes away everything of a run for good; totals of the fleet stay. Its shippers are answered 410 from then on.
    Needs scope admin, of every project."""
    if not deletions.delete(here.store, run, caller.name, time.time_ns()):
        raise unknown_run(run)
    return Response(status_code=204)


def delete(store: Store, asked: argparse.Namespace) -> None:
    """The command. SQLite's file is written anew, too."""
    if not deletions.delete(store, asked.run, who(), time.time_ns()):
        raise NoRunError(f"there is no run {asked.run[:80]!r}; give the id that its page has under Settings of the run")
    deletions.compact(store)
    print(f"run {asked.run} is deleted")
    if not store.is_sqlite:
        print("PostgreSQL keeps deleted rows in its files until VACUUM FULL has been there, and in its log and backups")
