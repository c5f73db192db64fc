"""Receives batches of frames over HTTP and answers with the committed offset.

A batch is committed as a whole and writes rows of its own stream only. A batch that begins at the acknowledged offset
is applied and advances it; a batch that ends at or before it is acknowledged again; any other batch is answered with
409 and the offset to continue from. A refused batch changes nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Annotated

import msgspec
from anyio import CapacityLimiter, to_thread
from cachetools import TTLCache
from fastapi import APIRouter, Query, Request, Response
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from ammeter.wire import frames
from ammeter_server.auth import callers
from ammeter_server.auth.callers import Caller
from ammeter_server.auth.tokens import fingerprint
from ammeter_server.db import StoreAwayError, StoreFullError
from ammeter_server.http.limits import rate
from ammeter_server.http.limits.body import body_of
from ammeter_server.http.problems import Problem, answer, of_store
from ammeter_server.ingest.mailbox import Mailbox
from ammeter_server.ingest.registration import IngestRequest
from ammeter_server.ingest.writer_queue import Intake
from ammeter_server.process import activity_log, self_metrics

router = APIRouter(tags=["ingest"])

Offset = Annotated[int, Query(ge=0, lt=2**63)]

FRAMES_PATH = re.compile(r"/api/v1/runs/([^/]+)/streams/([^/]+)/frames")
OFFSETS_QUERY = re.compile(rb"offset=([0-9]{1,18})&end=([0-9]{1,18})")

TOKEN_CACHE_SECONDS = 1.0
"""A revoked token can still write for this time."""

MAX_CACHED_TOKENS = 10_000

TOKEN_THREADS = 4
"""Threads for authentication, separate from those of readers: ingest does not wait for readers."""


class FramesFirst:
    """ASGI middleware that bypasses the router for batches: its parameter checks cost as much as a batch.

    It handles only URLs in the form that shippers send. The router handles all others, and explains their errors.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        path = FRAMES_PATH.fullmatch(scope["path"]) if is_post else None
        query = OFFSETS_QUERY.fullmatch(scope["query_string"]) if path else None
        if path is None or query is None:
            await self.app(scope, receive, send)
            return
        try:
            response = await append_frames(Request(scope, receive), path[1], path[2], int(query[1]), int(query[2]))
        except Problem as problem:
            response = answer(problem)
        except (StoreFullError, StoreAwayError) as error:
            response = answer(of_store(error))
        await response(scope, receive, send)


class TokenCache:
    """Caches the authenticated callers of ingest: one database query a second per token. For the event loop only.

    Args:
        clock: Monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._callers: TTLCache[str, Caller] = TTLCache(MAX_CACHED_TOKENS, TOKEN_CACHE_SECONDS, clock)
        self._threads = CapacityLimiter(TOKEN_THREADS)

    async def caller(self, connection: HTTPConnection) -> Caller:
        """Returns the caller. Raises the problems of callers.ingest."""
        headers = [connection.headers.get(name, "") for name in ("authorization", "host")]
        key = fingerprint("\n".join((*headers, callers.proxy_header(connection) or "")))
        caller = self._callers.get(key)
        if caller is None or (caller.expires is not None and caller.expires <= time.time_ns()):
            caller = await to_thread.run_sync(callers.ingest, connection, limiter=self._threads)
            self._callers[key] = caller
        return caller


@router.post(
    "/api/v1/runs/{run}/streams/{stream}/frames",
    summary="Append frames to a stream",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {frames.CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        }
    },
    responses={
        200: {
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "required": ["offset", "directives"],
                        "properties": {
                            "offset": {"type": "integer", "minimum": 0},
                            "directives": {"type": "array", "items": {"type": "object"}},
                        },
                    }
                }
            }
        },
        404: {"description": "The stream is not known to this token's project"},
        409: {"description": "The batch does not begin at the acknowledged offset, which the member `offset` names"},
        410: {"description": "The run was deleted; the collector stores nothing of it any more"},
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
) -> Response:
    """Appends the frames of a journal from `offset` to `end`; answers the committed offset."""
    state = request.app.state
    intake: Intake = state.intake
    caller = await _caller(request, run, stream)
    try:
        rate.check(state.stream_rates, run, stream, caller.project)
        _check_type(request)
        async with body_of(request, state.settings.max_body_bytes, state.body_memory) as body:
            with self_metrics.ingest_seconds.time():
                committed = await intake.submit(IngestRequest(run, stream, offset, end, body, caller.project))
    except Problem as problem:
        self_metrics.ingest_requests.labels(problem.status).inc()
        if problem.status != 409:  # shippers find their offset by a 409
            limit = problem.members.get("limit")
            reason = f"status={problem.status}" + (f" limit={limit}" if limit else "")
            activity_log.refused("batch.refused", reason, run=run, stream=stream, detail=problem.detail)
        raise
    self_metrics.ingest_requests.labels(200).inc()
    mailbox: Mailbox = state.mailbox
    directives = await mailbox.take(run, stream)
    return Response(msgspec.json.encode(frames.Ack(committed, directives)), media_type="application/json")


async def _caller(request: Request, run: str, stream: str) -> Caller:
    """Returns the caller; logs a rejected one, once a minute for each address."""
    try:
        caller: Caller = await request.app.state.token_cache.caller(request)
    except Problem as problem:
        if problem.status != 429:  # a limit logs itself
            reason, source = f"status={problem.status}", callers.address_of(request)
            activity_log.refused("batch.refused", reason, source=source, run=run, stream=stream, detail=problem.detail)
        raise
    return caller


def _check_type(request: Request) -> None:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != frames.CONTENT_TYPE:
        raise Problem(415, f"Content-Type is {given[:80]!r}; send {frames.CONTENT_TYPE}")
    coding = request.headers.get("content-encoding", "identity")
    if coding != "identity":
        raise Problem(415, f"Content-Encoding is {coding[:80]!r}; send the batch as it is, its blocks are compressed")
