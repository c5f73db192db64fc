"""Frames in: one transaction per batch, which writes only its own stream's rows.

The acknowledged offset is the whole protocol: a batch that begins there is applied and moves it, one that ends
before it is acknowledged again, any other is told where to go on. A refused batch changes nothing.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Annotated, Any

import anyio
import anyio.to_thread
import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from ammeter import wire
from ammeter_server import auth, checks, meters
from ammeter_server.append import append
from ammeter_server.collector import Collector, Here
from ammeter_server.plain import text
from ammeter_server.problems import Problem
from ammeter_server.request_body import read_body
from ammeter_server.store import Connection, Row, streams

router = APIRouter(tags=["ingest"])

MAX_STREAMS = 16_384
"""Streams of one run: the ranks of a large job, and some lives of each."""

AT_ONCE = 4
"""Batches that are taken at the same time. They wait here, not in the threads that answer everybody else."""

Offset = Annotated[int, Query(ge=0, lt=2**63)]


@dataclass(frozen=True)
class Append:
    """One request: the batch, and where in which stream it belongs."""

    run: str
    stream: str
    offset: int
    end: int
    batch: wire.Batch
    project: str | None
    now: int


@router.post(
    "/api/v1/runs/{run}/streams/{stream}/frames",
    summary="Append frames to a stream",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {wire.CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        }
    },
    responses={
        200: {
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {
                            "offset": {"type": "integer"},
                            "directives": {"type": "array", "items": {"type": "object"}},
                        },
                    }
                }
            }
        },
        409: {"description": "The batch does not begin at the acknowledged offset, which the member `offset` names"},
        413: {"description": "Too large; send it in parts"},
        422: {"description": "Refused; the member `item` is the index of the item that is wrong"},
    },
)
async def append_frames(
    request: Request,
    run: str,
    stream: str,
    offset: Offset,
    end: Offset,
    here: Here,
    caller: Annotated[auth.Caller, Depends(auth.ingest)],
) -> Response:
    """Appends what a journal holds from `offset` to `end`; answers the offset that is committed."""
    try:
        body = await _body(request, here.settings.max_body_bytes)
        with meters.ingest_seconds.time():
            committed = await anyio.to_thread.run_sync(
                take, here, run, stream, offset, end, body, caller.project, limiter=_limiter(request)
            )
    except Problem as problem:
        meters.ingest_requests.labels(problem.status).inc()
        raise
    meters.ingest_requests.labels(200).inc()
    return Response(msgspec.json.encode(wire.Ack(committed)), media_type="application/json")


def _limiter(request: Request) -> anyio.CapacityLimiter:
    """The application's own: it belongs to the loop that runs it."""
    found: anyio.CapacityLimiter = request.app.state.taking
    return found


async def _body(request: Request, limit: int) -> bytes:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != wire.CONTENT_TYPE:
        raise Problem(415, f"Content-Type is {given!r}; send {wire.CONTENT_TYPE}")
    coding = request.headers.get("content-encoding", "identity")
    if coding != "identity":
        raise Problem(415, f"Content-Encoding is {coding!r}; send the batch as it is, its blocks are compressed")
    try:
        return await read_body(request, limit)
    except Problem:
        meters.limited.labels("body").inc()
        raise


def take(here: Collector, run: str, stream: str, offset: int, end: int, body: bytes, project: str | None) -> int:
    """Decodes, checks and commits one batch. Returns the acknowledged offset; raises Problem."""
    _check_place(run, stream, offset, end)
    batch = checks.decoded(body)
    checks.check(batch, run, stream, offset, end, here.settings.max_unpacked_bytes)
    committed, awaited = _commit(here, Append(run, stream, offset, end, batch, project, time.time_ns()))
    if awaited:
        here.bell.set()
    return committed


def _commit(here: Collector, request: Append) -> tuple[int, bool]:
    """(acknowledged offset, whether the judge has something to look at)."""
    run, stream, batch = request.run, request.stream, request.batch
    with here.store.writing() as connection:
        owner = streams.run_project(connection, run)
        if request.project is not None and owner not in (None, request.project):
            raise Problem(404, f"run {run} is not known to this token's project")
        row = streams.lock(connection, run, stream)
        committed = row.acknowledged if row else 0
        if request.offset != committed:
            return _elsewhere(request, committed), False
        if request.offset == request.end:
            if row:
                heard = {"heard": request.now, "alive": batch.alive, "backlog": batch.backlog}
                streams.put(connection, run, stream, heard)
            return committed, False
        if row is None:
            row = _open(connection, request)
            if row.acknowledged != request.offset:  # another sender opened it between our two looks
                return _elsewhere(request, row.acknowledged), False
        elif row.schema is None:
            _introduce(connection, request)
        return request.end, append(connection, row, batch, request.end, request.now)


def _check_place(run: str, stream: str, offset: int, end: int) -> None:
    try:
        well_formed = str(uuid.UUID(run)) == run and uuid.UUID(stream).hex == stream
    except ValueError:
        well_formed = False
    if not well_formed:
        raise Problem(422, f"run {run!r} and stream {stream!r}: use a lower-case UUID with dashes, and one without")
    if end < offset:
        raise Problem(422, f"offset {offset} is behind end {end}")


def _elsewhere(request: Append, committed: int) -> int:
    """What to answer to a batch that does not begin where the stream ends."""
    if request.end <= committed:
        return committed
    raise Problem(
        409,
        f"the batch holds {request.offset} to {request.end}; everything before {committed} is committed: go on there",
        offset=committed,
    )


def _open(connection: Connection, request: Append) -> Row[Any]:
    """Makes the run and the stream. The hello tells what they are; without one all that is known is what was lost."""
    first = request.batch.items[0] if request.batch.items else None
    if first is not None and not isinstance(first, wire.Hello):
        raise Problem(422, f"a new stream begins with a hello, this one with {type(first).__name__.lower()}", item=0)
    if streams.count(connection, request.run) >= MAX_STREAMS:
        meters.limited.labels("streams").inc()
        raise Problem(403, f"run {request.run} has {MAX_STREAMS} streams, which is the limit; start a new run")
    streams.add_run(connection, request.run, _of_run(first, request))
    streams.add(connection, request.run, request.stream, request.now)
    row = streams.lock(connection, request.run, request.stream)
    assert row is not None
    return row


def _introduce(connection: Connection, request: Append) -> None:
    """Fills in the run of a stream whose beginning was lost, with the first hello that came through."""
    for item in request.batch.items:
        if isinstance(item, wire.Hello):
            streams.add_run(connection, request.run, _of_run(item, request))
            return


def _of_run(hello: wire.Hello | None, request: Append) -> dict[str, Any]:
    if hello is None:
        return {"project": request.project or "default", "started": 0}
    return {
        "name": text(hello.name),
        "project": request.project or text(hello.project),
        "config": hello.config,
        "tags": hello.tags,
        "environment": hello.environment,
        "world_size": hello.world_size,
        "started": hello.started or request.now,
    }
