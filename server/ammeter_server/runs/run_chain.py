"""Where a stream belongs: to the run that its sender names, and to a successor where that run was over.

A run that ended over an hour ago gets a successor, it is not reopened. A successor's external id follows from the
run's, so every collector finds the same one without asking another. What counts is the training hosts' time from the
end to the new beginning: journals that come late are placed as they would have been.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, islice, repeat
from typing import Any

from ammeter_server.db import Connection, Row, run_deletion
from ammeter_server.db.queries import judge, streams
from ammeter_server.http.problems import Problem
from ammeter_server.runs import run_ids

AFTER = 3600 * 10**9
"""ns after its end for which a run goes on when a process of it begins: a job queued again, a node that reboots."""

MAX_RUNS_PER_CHAIN = 32
"""Runs that follow each other. Whoever begins more under one id gets the last of them, until the first are deleted."""

NO_PROJECT = "default"
"""Whose a run is of which only losses came so far, by a sender who is of every project."""


@dataclass(frozen=True)
class Home:
    """The run that a stream belongs to. run: its id, also of one that is still to be made. external: what its
    processes call it. after: the id of the run that it follows, where it is a successor."""

    run: str
    external: str
    after: str | None = None


def successor(external: str) -> str:
    """The external id of the run that follows this one."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"successor of {external}"))


def line_of(connection: Connection, run: str) -> list[Row[Any]]:
    """The runs of one line: those that this one continues, itself, and those that continue it, the first one first."""
    found: list[Row[Any]] = []
    before: str | None = run
    while before is not None and len(found) <= MAX_RUNS_PER_CHAIN:
        row = judge.look_at(connection, before)
        if row is None:
            break
        found.insert(0, row)
        before = (row.environment or {}).get("continues")
    while found and len(found) <= MAX_RUNS_PER_CHAIN:
        following = run_ids.find(connection, found[-1].project, successor(found[-1].external_id))
        row = judge.look_at(connection, following) if following else None
        if row is None:
            break
        found.append(row)
    return found


def home(
    connection: Connection, named: str, stream: str, began: int | None, project: str | None, said: str | None = None
) -> Home:
    """The run that a stream belongs to whose sender names this run.

    That which holds it, else the first that had not been over for long when the stream's process began: the one named,
    a successor, or one that is still to be made. began: None where that is not known. project: the sender's; None for
    one who is of every project, and then said is the one that its hello names. Raises a 404 problem where the stream is
    another project's.
    """
    names = list(islice(accumulate(repeat(named), lambda before, _: successor(before)), MAX_RUNS_PER_CHAIN + 1))
    if project is None:
        holders = streams.holding(connection, names, stream)
        held = min(holders, key=lambda row: (row.project != said, row.id != row.external_id, row.id), default=None)
        if held is not None:
            return Home(held.id, held.external_id)
        return _first_open(_line(connection, names, said or _project_of(connection, named), True), began)
    places = _line(connection, names, project, False)
    for place in places:
        if place.row is not None and streams.holds(connection, place.run, stream):
            return Home(place.run, place.external)
    if streams.holding(connection, names, stream):
        raise Problem(404, f"stream {stream} of run {named} is not known to this token's project")
    return _first_open(places, began)


@dataclass(frozen=True)
class _Place:
    """A run of a line, or where one may be made."""

    run: str
    external: str
    row: Row[Any] | None


def _line(connection: Connection, names: list[str], project: str, adopts: bool) -> list[_Place]:
    """The project's run and those that follow it, with the first that is not there. Those at the beginning may be
    deleted. adopts: whether a run without a project, of which only losses came so far, is the project's too."""
    ids = [run for name in names for run in run_ids.candidates(project, name)]
    there, gone = streams.runs_of(connection, ids), run_deletion.of(connection, ids)
    places = []
    for name in names:
        run = run_ids.pick(there, project, name)
        if run is None and adopts and name in there and _is_nobodys(there[name]):
            run = name
        row = there[run] if run else None
        run = run or _deleted(gone, project, name) or run_ids.free({*there, *gone}, project, name)
        places.append(_Place(run, name, row))
    first = next((number for number, place in enumerate(places) if place.row is not None), 0)
    behind = next((number for number in range(first, len(places)) if places[number].row is None), len(places) - 1)
    return places[first : behind + 1]


def _deleted(gone: Mapping[str, str], project: str, external: str) -> str | None:
    """The id of the project's run that was deleted, which takes nothing any more."""
    ours = (run for run in run_ids.candidates(project, external) if gone.get(run) in (project, ""))
    return next(ours, None)


def _first_open(places: list[_Place], began: int | None) -> Home:
    number = next((number for number, place in enumerate(places) if not _over(place.row, began)), len(places) - 1)
    return Home(places[number].run, places[number].external, places[number - 1].run if number else None)


def _project_of(connection: Connection, named: str) -> str:
    """Whose a stream is that begins with losses alone, of a sender who is of every project: that of the run named, also
    of one that was deleted, which nobody brings back that way."""
    return streams.run_project(connection, named) or run_deletion.of(connection, [named]).get(named) or NO_PROJECT


def _is_nobodys(row: Row[Any]) -> bool:
    return bool(row.project == NO_PROJECT and not row.started)


def _over(row: Row[Any] | None, began: int | None) -> bool:
    if row is None or began is None or row.ended is None or row.state not in ("ended", "lost"):
        return False
    return bool(began > row.ended + AFTER)
