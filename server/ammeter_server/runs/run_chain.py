"""Assigns a stream to the run that its sender names, or to a successor.

A run that ended over an hour ago is not reopened but gets a successor. The successor's external id is derived from the
run's, so every collector finds the same one without communication. The criterion is the training hosts' time between
the end and the new beginning, so late journals are assigned as timely ones would have been.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice, repeat
from typing import Any

from ammeter_server.db import Connection, Row, run_deletion
from ammeter_server.db.queries import judge, streams
from ammeter_server.http.problems import Problem
from ammeter_server.runs import run_ids

MAX_PAUSE_NS = 3600 * 10**9
"""Time after its end in which a new process continues a run: for a requeued job or a rebooting node."""

MAX_RUNS_PER_CHAIN = 32
"""Runs in a chain. Further beginnings under the same id join the last run, until the first ones are deleted."""

NO_PROJECT = "default"
"""Project of a run that so far has only losses, from a sender whose token is valid for all projects."""


@dataclass(frozen=True)
class AssignedRun:
    """The run that a stream belongs to.

    Attributes:
        run: Its id; the run may not exist yet.
        external: The id that its processes use.
        after: The id of the run that it continues, if it is a successor.
    """

    run: str
    external: str
    after: str | None = None


@lru_cache(run_ids.MAX_CACHED_IDS)
def successor(external: str) -> str:
    """Returns the external id of the run that continues this one."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"successor of {external}"))


def chain_of(connection: Connection, run: str) -> list[Row[Any]]:
    """Returns the chain of a run, first run first: its predecessors, itself, its successors."""
    chain: list[Row[Any]] = []
    before: str | None = run
    while before is not None and len(chain) <= MAX_RUNS_PER_CHAIN:
        row = judge.run_unlocked(connection, before)
        if row is None:
            break
        chain.insert(0, row)
        before = (row.environment or {}).get("continues")
    while chain and len(chain) <= MAX_RUNS_PER_CHAIN:
        following = run_ids.find(connection, chain[-1].project, successor(chain[-1].external_id))
        row = judge.run_unlocked(connection, following) if following else None
        if row is None:
            break
        chain.append(row)
    return chain


def assign_run(
    connection: Connection,
    named: str,
    stream: str,
    began: int | None,
    project: str | None,
    hello_project: str | None = None,
) -> AssignedRun:
    """Returns the run for a stream whose sender names the run `named`.

    This is the run that already contains the stream. Otherwise it is the first run of the chain that had not been over
    for long when the process began: the named one, a successor, or one that does not exist yet.

    Args:
        connection: The database.
        named: The external id that the sender names.
        stream: The stream.
        began: When the process began, in ns; None if unknown.
        project: The sender's project; None for a sender of all projects.
        hello_project: The project in the hello of a sender of all projects.

    Raises:
        Problem: 404, if the stream belongs to another project.
    """
    names = list(islice(accumulate(repeat(named), lambda before, _: successor(before)), MAX_RUNS_PER_CHAIN + 1))
    if project is None:
        owners = streams.runs_with_stream(connection, names, stream)
        owner = min(
            owners, key=lambda row: (row.project != hello_project, row.id != row.external_id, row.id), default=None
        )
        if owner is not None:
            return AssignedRun(owner.id, owner.external_id)
        return _first_open(_chain(connection, names, hello_project or _project_of(connection, named), True), began)
    places = _chain(connection, names, project, False)
    for place in places:
        if place.row is not None and streams.exists(connection, place.run, stream):
            return AssignedRun(place.run, place.external)
    if streams.runs_with_stream(connection, names, stream):
        raise Problem(404, f"stream {stream} of run {named} is not known to this token's project")
    return _first_open(places, began)


@dataclass(frozen=True)
class _Place:
    """A run of a chain, or an id for a new one.

    row: the run's row; None for a new run.
    """

    run: str
    external: str
    row: Row[Any] | None


def _chain(connection: Connection, names: list[str], project: str, adopts: bool) -> list[_Place]:
    """Returns the project's runs of a chain, then the first place without a run.

    The first runs of the chain may be deleted.

    Args:
        connection: The database.
        names: The external ids of the chain.
        project: The project.
        adopts: Whether the project gets a run without a project, which so far has only losses.
    """
    ids = [run for name in names for run in run_ids.candidates(project, name)]
    existing, deleted = streams.runs_of(connection, ids), run_deletion.of(connection, ids)
    places = []
    for name in names:
        run = run_ids.pick(existing, project, name)
        if run is None and adopts and name in existing and _is_unassigned(existing[name]):
            run = name
        row = existing[run] if run else None
        run = run or _deleted_id(deleted, project, name) or run_ids.free({*existing, *deleted}, project, name)
        places.append(_Place(run, name, row))
    first = next((number for number, place in enumerate(places) if place.row is not None), 0)
    end = next((number for number in range(first, len(places)) if places[number].row is None), len(places) - 1)
    return places[first : end + 1]


def _deleted_id(deleted: Mapping[str, str], project: str, external: str) -> str | None:
    """Returns the id of the project's deleted run, which accepts no more data."""
    ours = (run for run in run_ids.candidates(project, external) if deleted.get(run) in (project, ""))
    return next(ours, None)


def _first_open(places: list[_Place], began: int | None) -> AssignedRun:
    number = next((number for number, place in enumerate(places) if not _over(place.row, began)), len(places) - 1)
    return AssignedRun(places[number].run, places[number].external, places[number - 1].run if number else None)


def _project_of(connection: Connection, named: str) -> str:
    """Returns the project of a losses-only stream from a sender of all projects.

    It is the project of the named run, even of a deleted one, so that such a stream does not recreate the run.
    """
    return streams.run_project(connection, named) or run_deletion.of(connection, [named]).get(named) or NO_PROJECT


def _is_unassigned(row: Row[Any]) -> bool:
    return bool(row.project == NO_PROJECT and not row.started)


def _over(row: Row[Any] | None, began: int | None) -> bool:
    if row is None or began is None or row.ended is None or row.state not in ("ended", "lost"):
        return False
    return bool(began > row.ended + MAX_PAUSE_NS)
