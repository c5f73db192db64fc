"""GET /api/v1/runs/{run}/events: the events of a run, newest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query

from ammeter_server.api.runs import require_run
from ammeter_server.context import ContextDep
from ammeter_server.curves.run_axis import RunAxis
from ammeter_server.db import Row
from ammeter_server.db.json_safe import instant
from ammeter_server.db.queries import events as query
from ammeter_server.http.pagination import PageSize, PageToken, key_of, token
from ammeter_server.http.problems import Problem
from ammeter_server.http.query_params import First, Last, Ranks, Since, Until, begin_of, end_of, ranks_of

router = APIRouter(prefix="/api/v1/runs/{run}/events", tags=["runs"])

MAX_NAMES = 64
"""Maximum number of names in one request: each is a condition of the query, and databases limit their number."""


@dataclass(frozen=True)
class Event:
    """An event of a run; its name is subject.happened. docs/events.md describes the data.

    Attributes:
        step: The step in its attempt, as counted by the process.
        step_offset: Offset to add to `step` for the step of the run.
    """

    id: str
    run: str
    stream: str
    rank: int
    name: str
    step: int
    time: str | None
    data: dict[str, Any]
    step_offset: int = 0


@dataclass(frozen=True)
class EventList:
    items: list[Event]
    next_page_token: str | None


@router.get("", summary="Events of a run, newest first")
def list_events(
    context: ContextDep,
    run: str,
    name: Annotated[str | None, Query(description="Names, separated by commas: `step.skipped,scaler.*`.")] = None,
    rank: Ranks = None,
    stream: str | None = None,
    first: First = None,
    last: Last = None,
    since: Since = None,
    until: Until = None,
    page_size: PageSize = 100,
    page_token: PageToken = None,
) -> EventList:
    """Lists events of all ranks by time; each stream keeps its journal's order.

    A page with large events contains fewer of them.
    """
    before = key_of(page_token, (int, str, int))
    names = _names(name or "")
    span = query.Span(first, last, begin_of(since), end_of(until))
    with context.store.reading() as connection:
        require_run(connection, run)
        rows, more = query.newest(connection, run, page_size, before, names, ranks_of(rank), stream, span)
    axis = context.axes.of(context.store, run)
    items = [to_response(row, row.rank, axis) for row in rows]
    end = rows[-1] if more else None
    return EventList(items, token(end.time, end.stream, end.number) if end else None)


def _names(given: str) -> list[str]:
    names = list(dict.fromkeys(name for name in given.split(",") if name))
    if len(names) > MAX_NAMES:
        raise Problem(422, f"name contains {len(names)} names; use at most {MAX_NAMES}, or a prefix such as scaler.*")
    return names


def to_response(row: Row[Any], rank: int, axis: RunAxis) -> Event:
    """Converts a row to its JSON form."""
    number = f"{row.stream}.{row.number}"
    return Event(
        number, row.run, row.stream, rank, row.name, row.step, instant(row.time), row.data, axis.offset(row.stream)
    )
