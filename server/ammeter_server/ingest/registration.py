"""Creates runs and streams: checks project, quota and deletion, and fills their rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ammeter.wire import frames
from ammeter.wire.printable import line
from ammeter_server.db import Connection, run_deletion
from ammeter_server.db.queries import streams
from ammeter_server.http import limits
from ammeter_server.http.limits.run_quota import Quota
from ammeter_server.http.problems import Problem
from ammeter_server.runs.ownership import columns_of
from ammeter_server.runs.run_chain import NO_PROJECT, assign_run
from ammeter_server.runs.run_ids import find

MAX_STREAMS = 16_384
"""Of one run: the ranks of a large job, and several attempts of each."""


@dataclass(frozen=True)
class IngestRequest:
    """One request to append bytes to a stream.

    Attributes:
        run: The id that the sender uses; after place_stream() the id under which the run is stored.
        stream: The id of the stream.
        offset: Where the bytes begin in the stream.
        end: Where they end.
        body: The encoded batch.
        project: The only project that the sender's token may write to; None for every project.
        named: The id that the sender uses, once place_stream() has set `run`.
        external: The id that the processes of the stored run use.
        after: The run that the stored run continues, where the sender named a run that had ended.
    """

    run: str
    stream: str
    offset: int
    end: int
    body: bytes
    project: str | None = None
    named: str = ""
    external: str = ""
    after: str | None = None

    @property
    def sender_run(self) -> str:
        """The id of the run that the sender uses."""
        return self.named or self.run


def place_stream(connection: Connection, request: IngestRequest, batch: frames.Batch) -> IngestRequest:
    """Sets the run under which the stream is stored. Raises a 404 problem for another project's stream."""
    hello = _hello(batch)
    started, project = (hello.started, line(hello.project)) if hello else (None, None)
    place = assign_run(connection, request.sender_run, request.stream, started, request.project, project)
    return replace(request, run=place.run, named=request.sender_run, external=place.external, after=place.after)


def check_owner(connection: Connection, request: IngestRequest) -> None:
    """Raises a 404 problem for another project's run."""
    if request.project is not None and streams.run_project(connection, request.run) not in (None, request.project):
        raise Problem(404, f"run {request.sender_run} is not known to this token's project")


def check_deleted(connection: Connection, request: IngestRequest) -> None:
    """Raises a 410 problem for a deleted run."""
    if run_deletion.is_deleted(connection, request.run):
        raise Problem(
            410,
            f"run {request.run} was deleted; nothing of it is stored any more: delete its journal on its host",
        )


def check_opening(connection: Connection, request: IngestRequest, batch: frames.Batch, quota: Quota) -> None:
    """Checks the first batch of a stream: it begins with a hello or holds losses only, and the quota allows it."""
    first = batch.items[0] if batch.items else None
    if first is not None and not isinstance(first, frames.Hello):
        raise Problem(422, f"a new stream begins with a hello, this one with {type(first).__name__.lower()}", item=0)
    if streams.run_of(connection, request.run) is None:
        quota.check(_project(request, _hello(batch)))
    elif streams.count(connection, request.run) >= MAX_STREAMS:
        detail = f"run {request.run} has {MAX_STREAMS} streams, which is the limit; start a new run"
        raise limits.over("streams", 403, detail, most=MAX_STREAMS)


def check_introduction(connection: Connection, request: IngestRequest, batch: frames.Batch, quota: Quota) -> None:
    """Checks the quota for a hello that arrives after losses and names another project."""
    hello, run = _hello(batch), streams.run_of(connection, request.run)
    if hello is not None and run is not None and run.project != (project := _project(request, hello)):
        quota.check(project)


def open_stream(connection: Connection, request: IngestRequest, batch: frames.Batch, now: int) -> IngestRequest:
    """Creates the missing rows of run and stream.

    Returns:
        The request with the id of its run, which differs where another project has just taken the id.
    """
    hello = _hello(batch)
    streams.add_run(connection, request.run, _run_values(hello, request, now))
    if (hello or request.project) and streams.run_project(connection, request.run) != _project(request, hello):
        request = place_stream(connection, request, batch)
        streams.add_run(connection, request.run, _run_values(hello, request, now))
        if streams.run_project(connection, request.run) != _project(request, hello):
            detail = f"another project is creating run {request.sender_run} at this moment; retry"
            raise Problem(503, detail, headers={"Retry-After": "1"})
    check_deleted(connection, request)  # it may have been deleted since the first check
    streams.add(connection, request.run, request.stream, now)
    return request


def introduce(connection: Connection, request: IngestRequest, batch: frames.Batch, now: int) -> None:
    """Fills in the run of a stream whose beginning was lost, from its first hello."""
    hello = _hello(batch)
    if hello is None:
        return
    values, run = _run_values(hello, request, now), streams.run_of(connection, request.run)
    if run is not None and find(connection, values["project"], run.external_id) not in (None, request.run):
        values["project"] = run.project  # that project has another run of this id
    streams.add_run(connection, request.run, values)


def _run_values(hello: frames.Hello | None, request: IngestRequest, now: int) -> dict[str, Any]:
    owner = {"project": _project(request, hello), "external_id": request.external or request.sender_run}
    if hello is None:
        return {**owner, "started": 0}
    environment = {name: value for name, value in hello.environment.items() if name != "continues"}
    after = {"continues": request.after} if request.after else {}
    return {
        **owner,
        "name": line(hello.name),
        "config": hello.config,
        "tags": hello.tags,
        "environment": environment | after,
        **columns_of(hello.tags, hello.environment),
        "world_size": hello.world_size,
        "started": hello.started or now,
    }


def _project(request: IngestRequest, hello: frames.Hello | None) -> str:
    return request.project or (line(hello.project) if hello else NO_PROJECT)


def _hello(batch: frames.Batch) -> frames.Hello | None:
    return next((item for item in batch.items if isinstance(item, frames.Hello)), None)
