"""GET /api/v1/runs/{run}/events: what happened in a run, newest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query

from ammeter_server.collector import Here
from ammeter_server.pagination import PageSize, PageToken, key_of, token
from ammeter_server.plain import instant
from ammeter_server.runs import found
from ammeter_server.store import events as query

router = APIRouter(prefix="/api/v1/runs/{run}/events", tags=["runs"])


@dataclass(frozen=True)
class Event:
    """name is subject.happened; data is described per name in docs/events.md."""

    id: str
    run: str
    stream: str
    rank: int
    name: str
    step: int
    time: str | None
    data: dict[str, Any]


@dataclass(frozen=True)
class EventList:
    items: list[Event]
    next_page_token: str | None


@router.get("", summary="Events of a run, newest first")
def list_events(
    here: Here,
    run: str,
    name: Annotated[str | None, Query(description="Only events of these names, between commas.")] = None,
    rank: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
    stream: str | None = None,
    first: Annotated[int | None, Query(alias="from", ge=0, lt=2**63, description="First step.")] = None,
    last: Annotated[int | None, Query(alias="to", ge=0, lt=2**63, description="Last step.")] = None,
    page_size: PageSize = 100,
    page_token: PageToken = None,
) -> EventList:
    """Events of all ranks by time; the order within a stream is its journal's."""
    before = key_of(page_token, (int, str, int))
    names = [each for each in (name or "").split(",") if each]
    with here.store.reading() as connection:
        found(connection, run)
        rows = query.newest(connection, run, page_size + 1, before, names, rank, stream, first, last)
    items = [
        Event(f"{row.stream}.{row.number}", run, row.stream, row.rank, row.name, row.step, instant(row.time), row.data)
        for row in rows[:page_size]
    ]
    if len(rows) <= page_size:
        return EventList(items, None)
    end = rows[page_size - 1]
    return EventList(items, token(end.time, end.stream, end.number))
