"""GET /api/v1/runs: what a run is and where it stands, told from its streams."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import APIRouter

from ammeter_server import progress
from ammeter_server.collector import Here
from ammeter_server.pagination import PageSize, PageToken, key_of, token
from ammeter_server.plain import instant
from ammeter_server.reach import Project, unknown_run
from ammeter_server.store import Connection, Row
from ammeter_server.store import runs as query
from ammeter_server.successors import successor

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])

REPORTING_SECONDS = 30
"""A rank not heard for this long does not count as reporting: fifteen of the shipper's heartbeats."""

State = Literal["running", "ended", "lost"]


@dataclass(frozen=True)
class Run:
    """A run as people see it. latest: last value of each scalar. counters: see progress.py.

    continues, continued_by: the runs before and after it under one id, where over an hour lay between them.
    """

    id: str
    name: str
    project: str
    state: State
    started: str | None
    ended: str | None
    last_step: int | None
    last_step_time: str | None
    world_size: int
    ranks_reporting: int
    precision: str | None
    torch_version: str | None
    device_model: str | None
    config: dict[str, Any]
    tags: dict[str, Any]
    latest: dict[str, Any]
    counters: dict[str, Any]
    lost: dict[str, dict[str, int]]
    faults: dict[str, Any]
    open_incidents: int
    closed_incidents: int
    worst: Literal["page", "ticket"] | None
    continues: str | None = None
    continued_by: str | None = None


@dataclass(frozen=True)
class RunList:
    items: list[Run]
    next_page_token: str | None


@router.get("", summary="Runs, newest first")
def list_runs(
    here: Here,
    project: Project,
    state: State | None = None,
    page_size: PageSize = 100,
    page_token: PageToken = None,
) -> RunList:
    """Runs from the one that started last."""
    before = key_of(page_token, (int, str))
    with here.store.reading() as connection:
        rows = query.newest(connection, page_size + 1, before, state, project)
        items = _told(connection, rows[:page_size])
    more = len(rows) > page_size
    return RunList(items, token(rows[page_size - 1].started, rows[page_size - 1].id) if more else None)


@router.get("/{run}", summary="One run")
def read_run(here: Here, run: str) -> Run:
    """The run's facts, its latest values and how much it counted. 404 for a run nobody reported."""
    with here.store.reading() as connection:
        row = found(connection, run)
        return _told(connection, [row])[0]


def found(connection: Connection, run: str) -> Row[Any]:
    """The run's row. Raises a 404 problem for one that is not there."""
    row = query.one(connection, run)
    if row is None:
        raise unknown_run(run)
    return row


def _told(connection: Connection, rows: Sequence[Row[Any]]) -> list[Run]:
    ids = [row.id for row in rows]
    streams = _by_run(query.streams_of(connection, ids))
    incidents = _by_run(query.incidents_of(connection, ids))
    after = query.there(connection, [successor(run) for run in ids])
    now = time.time_ns()
    return [tell(row, streams.get(row.id, []), incidents.get(row.id, []), now, after) for row in rows]


def tell(
    row: Row[Any],
    streams: Sequence[Row[Any]],
    incidents: Sequence[Row[Any]],
    now: int,
    after: Collection[str] = (),
) -> Run:
    """The run as people see it. streams: all of its own, oldest first. incidents: severity and state of each.

    after: the successors there are, of whichever runs.
    """
    severities = [each.severity for each in incidents if each.state != "closed"]
    ranks = [stream for stream in streams if stream.role == "rank"]
    ahead = max(ranks, key=lambda stream: stream.last_step_time or 0, default=None)
    environment = row.environment or {}
    return Run(
        id=row.id,
        name=row.name,
        project=row.project,
        state=row.state,
        started=instant(row.started),
        ended=instant(row.ended),
        last_step=ahead.last_step if ahead else None,
        last_step_time=instant(ahead.last_step_time) if ahead else None,
        world_size=row.world_size,
        ranks_reporting=ranks_reporting(row.state, ranks, now),
        precision=next((stream.precision for stream in reversed(ranks) if stream.precision), None),
        torch_version=environment.get("torch"),
        device_model=environment.get("device"),
        config=row.config,
        tags=row.tags,
        latest=latest(ranks),
        counters=counters_of(ranks),
        lost=lost(streams),
        faults={name: fault for stream in streams for name, fault in stream.faults.items()},
        open_incidents=len(severities),
        closed_incidents=len(incidents) - len(severities),
        worst="page" if "page" in severities else "ticket" if severities else None,
        continues=environment.get("continues"),
        continued_by=successor(row.id) if successor(row.id) in after else None,
    )


def ranks_reporting(state: str, ranks: Iterable[Row[Any]], now: int) -> int:
    """While the run lives: ranks heard a moment ago that said no goodbye. Afterwards: ranks that ever reported."""
    if state != "running":
        return len({stream.rank for stream in ranks})
    since = now - REPORTING_SECONDS * 10**9
    return len({stream.rank for stream in ranks if stream.bye_reason is None and stream.heard >= since})


def latest(ranks: Sequence[Row[Any]]) -> dict[str, Any]:
    """The last value of each scalar: the lowest rank's word stands, the newest life of it before older ones."""
    values: dict[str, Any] = {}
    for stream in sorted(ranks, key=lambda stream: (-stream.rank, stream.started)):
        values.update(stream.latest)
    return values


def counters_of(ranks: Iterable[Row[Any]]) -> progress.Counters:
    """What the run counted; its histograms are left to /metrics."""
    counted = progress.of_run([(stream.rank, stream.counters) for stream in ranks])
    return {name: value for name, value in counted.items() if not name.endswith("_histogram")}


def lost(streams: Iterable[Row[Any]]) -> dict[str, dict[str, int]]:
    """Records that never arrived, by reason, of all streams."""
    total: dict[str, dict[str, int]] = {}
    for stream in streams:
        for reason, counts in stream.lost.items():
            mine = total.setdefault(reason, {"steps": 0, "events": 0})
            for name in mine:
                mine[name] += counts.get(name, 0)
    return total


def _by_run(rows: Iterable[Row[Any]]) -> dict[str, list[Row[Any]]]:
    grouped: dict[str, list[Row[Any]]] = {}
    for row in rows:
        grouped.setdefault(row.run, []).append(row)
    return grouped
