"""GET /api/v1/incidents/{incident}/context: what a person needs to act on an incident."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter

from ammeter_server.api.handling import weights
from ammeter_server.api.handling.weights import Since, Weights
from ammeter_server.api.incidents import RUN_VERDICTS
from ammeter_server.auth.project_access import unknown_incident
from ammeter_server.context import AppContext, ContextDep
from ammeter_server.db import Connection, Row
from ammeter_server.db.json_safe import instant
from ammeter_server.db.queries import events, judge, runs
from ammeter_server.db.queries import incidents as query
from ammeter_server.incidents.next_action import Situation, has_ended, next_action
from ammeter_server.runs import cost, tool_links
from ammeter_server.runs.checkpoints import CheckpointEvent, SavedCheckpoint, last_good, resume_command
from ammeter_server.runs.ownership import JOB
from ammeter_server.runs.rank_totals import lead_of, ranks_reporting

router = APIRouter(prefix="/api/v1/incidents/{incident}", tags=["incidents"])

MAX_CHECKPOINTS = 200
"""Newest events about checkpoints that are read."""

NEVER = 2**63 - 1

CHECKPOINT_EVENTS = ("checkpoint.saved", "checkpoint.verified")


@dataclass(frozen=True)
class Checkpoint:
    """The newest checkpoint from before the fault; if the weights are safe, the newest of all.

    Attributes:
        step: The step of the run.
        missing: Parts that a resumed run needs and that it lacks.
        verified: Whether it was read back and found complete and finite.
        resume: The command of the run with this checkpoint; null if the command has no option for one.
    """

    path: str
    step: int
    saved: str | None
    missing: list[str]
    verified: bool
    resume: str | None


@dataclass(frozen=True)
class ContextLinks:
    """Addresses in other tools; null where the collector has no address for them."""

    log: str | None
    board: str | None
    silence: str | None


@dataclass(frozen=True)
class IncidentContext:
    """Facts about an incident's run; null or empty if unknown.

    Attributes:
        now: What to do with the run: stop it or not, and what to continue from.
        weights: Its `step` is a step of the run.
        dollars_per_hour: Of the ranks that report now; null if the run does not run, or without a price.
        host: Of the rank that the incident names.
        job: The id of the scheduler's job.
    """

    run_state: str
    now: str
    weights: Weights
    checkpoint: Checkpoint | None
    dollars_per_hour: float | None
    owner: str
    host: str
    job: str
    commit: str
    driver: str
    command: str
    links: ContextLinks


@router.get("/context", summary="What a person needs to act on an incident")
def read_context(context: ContextDep, incident: str) -> IncidentContext:
    """Returns the state of the weights, the last good checkpoint, owner, host, job, commit and burning cost."""
    with context.store.reading() as connection:
        row = query.one(connection, incident)
        run = row and runs.one(connection, row.run)
        if row is None or run is None:
            raise unknown_incident(incident)
        streams = runs.streams_of(connection, [row.run])
        found = weights.poisoned(row, judge.findings_of(connection, row.run))
        saves, _ = events.newest(connection, row.run, MAX_CHECKPOINTS, None, CHECKPOINT_EVENTS)
    ranks = [stream for stream in streams if stream.role == "rank"]
    lead = lead_of(streams, row.stream)
    axis = context.axes.of(context.store, row.run)
    offset = axis.offset(lead.id) if lead else 0
    since = weights.read(context.store, row, lead.id) if lead else Since(Weights("unknown"), 0, None)
    state = found or since.weights
    known = [CheckpointEvent(save.name, save.step + axis.offset(save.stream), save.time, save.data) for save in saves]
    first = row.first_step + (0 if row.verdict in RUN_VERDICTS else axis.offset(row.stream))
    good = last_good(known, NEVER if state.state == "safe" else first)
    situation = Situation(
        verdict=row.verdict,
        is_running=run.state == "running",
        is_page=row.severity == "page",
        is_over=row.closed_reason == weights.RECOVERED,
        has_ended=has_ended(row.evidence or {}),
        first_step=first,
        weights=state.state,
        good_checkpoint=None if good is None else good.step,
        any_checkpoint=last_good(known, NEVER) is not None,
        skipped_in_a_row=since.skipped_in_a_row,
        scale=since.scale,
    )
    environment = run.environment or {}
    host = lead.host if lead else ""
    return IncidentContext(
        run_state=run.state,
        now=next_action(situation),
        weights=Weights(state.state, None if state.step is None else state.step + offset),
        checkpoint=_checkpoint(good, environment.get("command")),
        dollars_per_hour=_burning(context, run, ranks),
        owner=run.owner,
        host=host,
        job=str(environment.get(JOB) or ""),
        commit=run.git_commit,
        driver=run.driver,
        command=str(environment.get("command") or ""),
        links=_links(context, row, run, host),
    )


def _checkpoint(found: SavedCheckpoint | None, command: Any) -> Checkpoint | None:
    if found is None:
        return None
    resume = resume_command(command if isinstance(command, str) else None, found.path)
    return Checkpoint(found.path, found.step, instant(found.time), found.missing, found.verified, resume)


def _burning(context: AppContext, run: Row[Any], ranks: list[Row[Any]]) -> float | None:
    if run.state != "running":
        return None
    reporting = ranks_reporting(run.state, ranks, time.time_ns())
    return cost.per_hour(context.settings.cost_per_hour, run.environment, reporting, run.tags)


def _links(context: AppContext, incident: Row[Any], run: Row[Any], host: str) -> ContextLinks:
    tools = tool_links.of_incident(context.settings.links, run, host, incident.verdict)
    return ContextLinks(tools.get("log"), tools.get("board"), tools.get("silence"))


def require(connection: Connection, incident: str) -> Row[Any]:
    """Returns the incident's row.

    Raises:
        Problem: 404 if there is no such incident.
    """
    row = query.one(connection, incident)
    if row is None:
        raise unknown_incident(incident)
    return row
