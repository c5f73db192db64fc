"""POST /api/v1/runs/{run}/directives: asks the processes of a live run for a reading in their next steps."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query

from ammeter_server.api.events import Event, to_response
from ammeter_server.api.runs import require_run
from ammeter_server.auth import callers
from ammeter_server.context import AppContext, ContextDep
from ammeter_server.db import Row
from ammeter_server.db.json_safe import instant
from ammeter_server.db.queries import audit, events, runs
from ammeter_server.db.queries.handling import directives as query
from ammeter_server.http.problems import Problem

router = APIRouter(prefix="/api/v1/runs/{run}/directives", tags=["runs"])

MAX_RANKS = 64
"""Ranks that receive a directive, the lowest: a fault of all ranks shows on these."""

MAX_STEPS = 100
"""Steps of a window, as the agent limits them."""

MAX_UNDELIVERED = 8
"""Directives of a run that wait; more would replace each other in its processes."""

MAX_ANSWERS = 1_000
"""Answers of a run in one response, the newest."""

CLOCK_NS = 3600 * 10**9
"""How far the clock of a training host, which dates an answer, may be behind that of the collector."""

Arm = Literal["origin", "census", "trial", "tensors"]

STEPS: dict[Arm, int] = {"origin": 5, "census": 1, "trial": 20, "tensors": 5}
"""Steps of each reading where the request does not name any."""

READINGS = (
    "`origin`: hooks on every module, which find where NaN or Inf begins. `census`: operators, their dtypes, casts and"
    " fallbacks. `trial`: the operator of the next NaN or Inf runs again. `tensors`: the statistics of all tensors."
)
Arms = Annotated[Arm, Query(description=READINGS)]
Defaults = ", ".join(f"{steps} for `{arm}`" for arm, steps in STEPS.items())
Steps = Annotated[int | None, Query(ge=1, le=MAX_STEPS, description=f"Training steps. Default: {Defaults}.")]
Changing = Annotated[callers.Caller, Depends(callers.change)]


@dataclass(frozen=True)
class Directive:
    """A reading that was asked for.

    Attributes:
        ranks: Processes that it is for.
        delivered_to: How many of them have received it.
        delivered: When the first of them did; null before.
        asked_by: The name of a token.
        answers: `directive.done` or `directive.refused` of each process that has answered. Processes of an Ammeter
            before 0.2 do not answer.
    """

    id: str
    arm: str
    steps: int
    asked_by: str
    created: str | None
    ranks: int
    delivered_to: int
    delivered: str | None
    answers: list[Event]


@dataclass(frozen=True)
class DirectiveList:
    items: list[Directive]


@router.get("", summary="Readings that were asked of a run")
def list_directives(context: ContextDep, run: str) -> DirectiveList:
    """Lists the readings that were asked of the run, newest first, with their answers."""
    with context.store.reading() as connection:
        require_run(connection, run)
    return _listed(context, run)


@router.post("", summary="Ask a live run for a reading")
def ask(context: ContextDep, run: str, caller: Changing, arm: Arms = "origin", steps: Steps = None) -> DirectiveList:
    """Asks the run's processes for a reading in their next steps.

    They receive it with the response to their next batch. What they find becomes events, the last of which is the
    answer. Status 409 if the run does not run, or if too many directives wait.
    """
    now, steps = time.time_ns(), steps or STEPS[arm]
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
        since = events.Span(since=min((row.created for row in rows), default=0) - CLOCK_NS)
        found = events.newest(connection, run, MAX_ANSWERS, None, ["directive.*"], span=since)[0] if rows else ()
    by_id: dict[str, list[Row[Any]]] = {}
    for row in rows:
        by_id.setdefault(row.id, []).append(row)
    axis = context.axes.of(context.store, run)
    answers: dict[str, list[Event]] = {}
    for row in sorted(found, key=lambda row: row.rank):
        answers.setdefault(str(row.data.get("id")), []).append(to_response(row, row.rank, axis))
    return DirectiveList([_directive(several, answers.get(name, [])) for name, several in by_id.items()])


def _directive(rows: Sequence[Row[Any]], answers: list[Event]) -> Directive:
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
        answers=answers,
    )
