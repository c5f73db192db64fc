"""Where a stream belongs whose run was over: a run that ended over an hour ago gets a successor, it is not reopened.

A successor's id follows from the run's, so every collector finds the same one without asking another. What counts is
the training hosts' time from the end to the new beginning: journals that come late are placed as they would have been.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from itertools import accumulate, islice, repeat
from typing import Any

from ammeter_server.store import Connection, Row, judgements, streams

AFTER = 3600 * 10**9
"""ns after its end for which a run goes on when a process of it begins: a job queued again, a node that reboots."""

LONGEST = 32
"""Runs that follow each other. Whoever begins more under one id gets the last of them, until the first are deleted."""


def successor(run: str) -> str:
    """The id of the run that follows this one."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"successor of {run}"))


def predecessor(run: str, named: str) -> str:
    """Of this successor, the run right before it in the line that begins with the one named."""
    before = named
    while successor(before) != run:
        before = successor(before)
    return before


def line_of(connection: Connection, run: str) -> list[Row[Any]]:
    """The runs of one line: those that this one continues, itself, and those that continue it, the first one first."""
    found: list[Row[Any]] = []
    before: str | None = run
    while before is not None and len(found) <= LONGEST:
        row = judgements.look_at(connection, before)
        if row is None:
            break
        found.insert(0, row)
        before = (row.environment or {}).get("continues")
    following = successor(run)
    while len(found) <= LONGEST and (row := judgements.look_at(connection, following)) is not None:
        found.append(row)
        following = successor(following)
    return found


def home(connection: Connection, run: str, stream: str, began: int | None, project: str | None) -> str:
    """The run that a stream belongs to whose sender names this run.

    That which holds it, else the first that had not been over for long when the stream's process began: the one named,
    a successor, or one that is still to be made. began: None where that is not known. project: the sender's, whose
    way ends at a run of another one.
    """
    first: str | None = None
    place = run
    for place, row in _line(connection, run):
        if row is None or (project is not None and row.project != project):
            break
        if streams.holds(connection, place, stream):
            return place
        if first is None and not _over(row, began):
            first = place
    return first or place


def _line(connection: Connection, run: str) -> Iterator[tuple[str, Row[Any] | None]]:
    """The run and those that follow it, with the first that is not there. Those at the beginning may be deleted."""
    ids = list(islice(accumulate(repeat(run), lambda before, _: successor(before)), LONGEST + 1))
    there = next((number for number, each in enumerate(ids) if streams.run_project(connection, each) is not None), None)
    for place in ids[there or 0 :]:
        row = streams.run_of(connection, place)
        yield place, row
        if row is None:
            return


def _over(row: Row[Any], began: int | None) -> bool:
    if began is None or row.ended is None or row.state not in ("ended", "lost"):
        return False
    return bool(began > row.ended + AFTER)
