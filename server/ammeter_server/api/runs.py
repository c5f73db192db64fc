"""GET /api/v1/runs: description and state of runs, derived from their streams."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Response

from ammeter.verdicts.not_judged import NotJudged
from ammeter.wire.ranks import lives
from ammeter_server.auth.project_access import Project, unknown_run
from ammeter_server.config.links import Links
from ammeter_server.config.prices import Prices
from ammeter_server.context import AppContext, ContextDep
from ammeter_server.curves.run_axis import ALONE, RunAxis, RunLife
from ammeter_server.db import Connection, Row
from ammeter_server.db.json_safe import instant
from ammeter_server.db.queries import runs as query
from ammeter_server.db.queries.steps.sources import life_of
from ammeter_server.http.pagination import PageSize, PageToken, key_of, token
from ammeter_server.http.problems import Problem
from ammeter_server.runs import cost, devices, tool_links
from ammeter_server.runs.devices import Device
from ammeter_server.runs.rank_totals import (
    REPORTING_NS,
    counters_of,
    latest,
    lost,
    newest_step,
    not_judged,
    precision,
    ranks_reporting,
)
from ammeter_server.runs.run_chain import successor
from ammeter_server.runs.run_ids import candidates, pick

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])

State = Literal["running", "ended", "lost"]


MAX_WORDS = 8
"""Words of a search; each is a condition of the query."""

Owner = Annotated[str | None, Query(description="Only runs with this tag `owner`.")]
Search = Annotated[str, Query(max_length=400, description="Words in the name, owner, tags or ids of a run.")]
Tags = Annotated[Sequence[str], Query(max_length=MAX_WORDS, description="`team=speech`; can be repeated.")]
Broken = Annotated[bool, Query(description="Only runs with an open incident.")]


@dataclass(frozen=True)
class Run:
    """A run. `last_step`, and `loss_step` and `grad_norm_step` in `latest`, count over all attempts.

    Attributes:
        id: Unique over all projects.
        external_id: The id that its processes use, unique in its project.
        latest: The last value of each scalar.
        counters: Its counters as on /metrics, without histograms and their sums.
        environment: Software and hardware of the run, and its first optimizer.
        command: The command line of its first process, without secrets.
        devices: Devices that report now.
        cost_dollars, cost_per_epoch_dollars: None without a price.
        replaced_steps: Steps that a later attempt repeated.
        replaced_cost_dollars: Their part of the cost; None without a price.
        seconds_per_epoch: None if the run does not report its epochs.
        continues, continued_by: The runs before and after it with the same id, more than an hour apart.
        not_judged: Verdicts that too few readings leave open.
        links: Addresses in other tools, `board` and `log`, where settings name them.
        lives: The attempts of its lowest rank on the step axis of the run; empty if the steps of its only attempt are
            those of the run.
    """

    id: str
    external_id: str
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
    cost_dollars: float | None = None
    cost_per_epoch_dollars: float | None = None
    replaced_steps: int = 0
    replaced_cost_dollars: float | None = None
    seconds_per_epoch: float | None = None
    devices: Sequence[Device] = ()
    command: str | None = None
    continues: str | None = None
    continued_by: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    lives: Sequence[RunLife] = ()
    not_judged: Sequence[NotJudged] = ()
    links: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunList:
    items: list[Run]
    next_page_token: str | None


@router.get("", summary="Runs, newest first", response_model=RunList)
def list_runs(
    context: ContextDep,
    project: Project,
    state: State | None = None,
    owner: Owner = None,
    q: Search = "",
    tag: Tags = (),
    broken: Broken = False,
    page_size: PageSize = 100,
    page_token: PageToken = None,
) -> Response:
    """Lists runs, the most recently started first.

    A page with large runs contains fewer of them.
    """
    before = key_of(page_token, (int, str))
    wanted = query.Wanted(state, project, owner, q.split()[:MAX_WORDS], _tags(tag), broken)
    with context.store.reading() as connection:
        query.snapshot(connection)
        rows, more = query.newest(connection, page_size, before, wanted)
        items = _descriptions(context, connection, rows)
    following = token(rows[-1].started, rows[-1].id) if more else None
    return _json(msgspec.json.encode({"items": list(map(msgspec.Raw, items)), "next_page_token": following}))


@router.get("/{run}", summary="One run", response_model=Run)
def read_run(context: ContextDep, run: str) -> Response:
    """Returns the run's description, latest values and counters.

    Status 404 if no run with this id has reported.
    """
    with context.store.reading() as connection:
        query.snapshot(connection)
        row = query.brief(connection, run)
        if row is None:
            raise unknown_run(run)
        (description,) = _descriptions(context, connection, [row])
    return _json(description)


def require_run(connection: Connection, run: str) -> Row[Any]:
    """Returns the run's row.

    Raises:
        Problem: 404 if there is no such run.
    """
    row = query.one(connection, run)
    if row is None:
        raise unknown_run(run)
    return row


def _tags(given: Sequence[str]) -> list[tuple[str, str]]:
    tags = []
    for tag in given:
        name, equals, value = tag.partition("=")
        if not equals or not name:
            raise Problem(422, f"tag is {tag[:80]!r}; use a name, = and a value, such as team=speech")
        tags.append((name, value))
    return tags


def _json(content: bytes) -> Response:
    """Returns JSON without FastAPI, which would validate every value again; the values were validated at ingest."""
    return Response(content, media_type="application/json")


def _descriptions(context: AppContext, connection: Connection, rows: Sequence[Row[Any]]) -> list[bytes]:
    """The JSON of each run. rows: brief ones; only a run that changed is read wholly."""
    ids, now = [row.id for row in rows], time.time_ns()
    marks = query.marks_of(connection, ids, now - REPORTING_NS)
    incidents = _by_run(query.incidents_of(connection, ids))
    following = {row.id: successor(row.external_id) for row in rows}
    runs_by_id = query.existing(
        connection, [candidate for row in rows for candidate in candidates(row.project, following[row.id])]
    )
    encoded: dict[str, bytes] = {}
    missing: dict[str, bytes] = {}
    after = {row.id: pick(runs_by_id, row.project, following[row.id]) for row in rows}
    for row in rows:
        own = row.state, row.started, row.ended, after[row.id], now // tool_links.HOUR_NS
        of_run = msgspec.msgpack.encode((*own, marks.get(row.id), [tuple(one) for one in incidents.get(row.id, ())]))
        known = context.encoded_runs.get(row.id, of_run)
        if known is None:
            missing[row.id] = of_run
        else:
            encoded[row.id] = known
    streams = _by_run(query.streams_of(connection, list(missing)))
    for row in query.described(connection, list(missing)):
        own_streams = streams.get(row.id, [])
        alone = _is_alone(row, own_streams)
        axis = ALONE if alone else context.axes.of(context.store, row.id, connection)
        parts = own_streams, incidents.get(row.id, []), now, after[row.id]
        run = to_response(row, *parts, context.settings.cost_per_hour, axis, context.settings.links)
        encoded[row.id] = msgspec.json.encode(run)
        if alone:
            context.encoded_runs.put(row.id, missing[row.id], encoded[row.id])
    return [encoded[run] for run in ids]


def _is_alone(row: Row[Any], streams: Sequence[Row[Any]]) -> bool:
    """Whether the run has one attempt and continues no other: its steps are its own, and no other run changes them."""
    ranks = [stream for stream in streams if stream.role == "rank"]
    follows = bool((row.environment or {}).get("continues"))
    return not follows and (len(ranks) < 2 or len(lives(map(life_of, ranks))) < 2)


def to_response(
    row: Row[Any],
    streams: Sequence[Row[Any]],
    incidents: Sequence[Row[Any]],
    now: int,
    after: str | None = None,
    prices: Prices = (),
    axis: RunAxis = ALONE,
    links: Links | None = None,
) -> Run:
    """Converts a row to its JSON form.

    Args:
        streams: All streams of the run, the oldest first.
        incidents: Severity and state of each.
        after: The id of its successor, if it has one.
        axis: The step axis of its attempts.
    """
    severities = [incident.severity for incident in incidents if incident.state != "closed"]
    ranks = [stream for stream in streams if stream.role == "rank"]
    newest = newest_step(ranks)
    environment = row.environment or {}
    return Run(
        id=row.id,
        external_id=row.external_id,
        name=row.name,
        project=row.project,
        state=row.state,
        started=instant(row.started),
        ended=instant(row.ended),
        last_step=newest[1] + axis.offset(newest[0].id) if newest else None,
        last_step_time=instant(newest[2]) if newest else None,
        world_size=row.world_size,
        ranks_reporting=ranks_reporting(row.state, ranks, now),
        precision=precision(ranks),
        torch_version=environment.get("torch"),
        device_model=environment.get("device"),
        config=row.config,
        tags=row.tags,
        latest=latest(ranks, axis.offset),
        counters=counters_of(ranks),
        lost=lost(streams),
        faults={name: fault for stream in streams for name, fault in stream.faults.items()},
        open_incidents=len(severities),
        closed_incidents=len(incidents) - len(severities),
        worst="page" if "page" in severities else "ticket" if severities else None,
        cost_dollars=cost.of_run(prices, environment, ranks, row.tags),
        cost_per_epoch_dollars=cost.per_epoch(prices, environment, ranks, row.tags),
        replaced_steps=cost.replaced_steps(axis.lives),
        replaced_cost_dollars=cost.of_replaced_steps(prices, environment, ranks, axis.lives, row.tags),
        seconds_per_epoch=cost.seconds_per_epoch(ranks),
        devices=devices.of_run(streams, now) if row.state == "running" else [],
        command=environment.get("command"),
        environment={name: value for name, value in environment.items() if name != "continues"},
        continues=environment.get("continues"),
        continued_by=after,
        lives=axis.lives,
        not_judged=not_judged(ranks),
        links=tool_links.of_run(links, row, ranks[0].host if ranks else "") if links else {},
    )


def _by_run(rows: Iterable[Row[Any]]) -> dict[str, list[Row[Any]]]:
    grouped: dict[str, list[Row[Any]]] = {}
    for row in rows:
        grouped.setdefault(row.run, []).append(row)
    return grouped
