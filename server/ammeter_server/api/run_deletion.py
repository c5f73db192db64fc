"""DELETE /api/v1/runs/{run}: deletes a run with all its rows."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from ammeter_server.auth import callers
from ammeter_server.auth.project_access import unknown_run
from ammeter_server.context import ContextDep
from ammeter_server.db import run_deletion
from ammeter_server.http.problems import Problem

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])


def _may(request: Request) -> callers.Caller:
    """Requires scope admin; a browser has to prove that the page itself sends the request."""
    caller = callers.admin(request)
    if caller.by_browser and callers.CHANGE_HEADER not in request.headers:
        raise Problem(403, f"the request has no header {callers.CHANGE_HEADER}; send it with any value")
    return caller


@router.delete("/{run}", status_code=204, summary="Delete a run")
def delete_run(context: ContextDep, run: str, caller: Annotated[callers.Caller, Depends(_may)]) -> Response:
    """Deletes every row of a run permanently; fleet totals remain.

    Its shippers receive 410 from then on. Requires scope admin for all projects.
    """
    if not run_deletion.delete(context.store, run, caller.name, time.time_ns()):
        raise unknown_run(run)
    return Response(status_code=204)
