"""POST /api/v1/runs/{run}/directives: asks the processes of a live run for a reading in their next steps."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query

from ammeter_server.api.runs import require_run
from ammeter_server.auth import callers
from ammeter_server.context import AppContext, ContextDep
from ammeter_server.db import Row
from ammeter_server.db.json_safe import instant
from ammeter_server.db.queries import audit, runs
from ammeter_server.db.queries.handling import directives as query
from ammeter_server.http.problems import Problem

router = APIRouter(prefix="/api/v1/runs/{run}/directives", tags=["runs"])

MAX_RANKS = 64
"""Ranks that receive a directive, the lowest: a fault of all ranks shows on these."""

MAX_STEPS = 100
"""Steps of a window, as the agent limits them."""

MAX_UNDELIVERED = 8
"""Directives of a run that wait; more would replace each other in its processes."""

Arm = Literal["origin"]
Arms = Annotated[Arm, Query(description="`origin`: hooks on every module, which find where NaN or Inf begins.")]
Steps = Annotated[int, Query(ge=1, le=MAX_STEPS, description="Training steps.")]
Changing = Annotated[callers.Caller, Depends(callers.change)]


@dataclass(frozen=True)
class Directive:
    """A reading that was asked for.

    Attributes:
        ranks: Processes that it is for.
        delivered_to: How many of them have received it.
        delivered: When the first of them did; null before.
        asked_by: The name of a token.
    """

    id: str
    arm: str
    steps: int
    asked_by: str
    created: str | None
    ranks: int
    delivered_to: int
    delivered: str | None


@dataclass(frozen=True)
class DirectiveList:
    items: list[Directive]


@router.get("", summary="Readings that were asked of a run")
def list_directives(context: ContextDep, run: str) -> DirectiveList:
    """Lists the readings that were asked of the run, newest first."""
    with context.store.reading() as connection:
        require_run(connection, run)
    return _listed(context, run)


@router.post("", summary="Ask a live run for a reading")
def ask(context: ContextDep, run: str, caller: Changing, arm: Arms = "origin", steps: Steps = 5) -> DirectiveList:
    """Asks the run's processes for a reading in their next steps.

    They receive it with the response to their next batch; what they find becomes events. Status 409 if the run does not
    run, or if too many directives wait.
    """
    now = time.time_ns()
    with context.store.writing() as connection:
        row = require_run(connection, run)
        ranks = _alive(runs.streams_of(connection, [row.id]))
        if row.state != "running" or not ranks:
            raise Problem(409, f"run {run[:80]!r} is {row.state}; only a run that sends steps can be asked")
        waiting = {old.id for old in query.of_run(connection, row.id) if old.delivered is None}
        if len(waiting) >= MAX_UNDELIVERED:
            raise Problem(409, f"{len(waiting)} directives of run {run[:80]!r} wait for its processes; retry later")
        common = {"run": row.id, "id": uuid.uuid4().hex, "arm": arm, "steps": steps, "actor": caller.name}
        query.add(
            connection,
            [{**common, "stream": stream.id, "rank": stream.rank, "created": now} for stream in ranks],
        )
        audit.add(connection, now, caller.name, "run.asked", row.id, f"{arm}, {steps} steps")
    return _listed(context, row.id)


def _alive(streams: Sequence[Row[Any]]) -> list[Row[Any]]:
    """The newest stream of each of the lowest ranks that has not ended."""
    newest = {stream.rank: stream for stream in streams if stream.role == "rank"}
    return [newest[rank] for rank in sorted(newest) if newest[rank].bye_reason is None][:MAX_RANKS]


def _listed(context: AppContext, run: str) -> DirectiveList:
    with context.store.reading() as connection:
        rows = query.of_run(connection, run)
    by_id: dict[str, list[Row[Any]]] = {}
    for row in rows:
        by_id.setdefault(row.id, []).append(row)
    return DirectiveList([_directive(several) for several in by_id.values()])


def _directive(rows: Sequence[Row[Any]]) -> Directive:
    times = [row.delivered for row in rows if row.delivered is not None]
    first = rows[0]
    return Directive(
        id=first.id,
        arm=first.arm,
        steps=first.steps,
        asked_by=first.actor,
        created=instant(first.created),
        ranks=len(rows),
        delivered_to=len(times),
        delivered=instant(min(times, default=None)),
    )
