"""GET /api/v1/runs/{run}/live: changes of a run as server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import msgspec
from anyio import CapacityLimiter, move_on_after, to_thread
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from ammeter_server.api import change_feed
from ammeter_server.api.change_feed import Cursor, Wanted
from ammeter_server.api.runs import require_run
from ammeter_server.api.series import names_of
from ammeter_server.auth.reader_limits import READER_KEY
from ammeter_server.context import AppContext, ContextDep
from ammeter_server.curves.run_axis import StepAxis
from ammeter_server.db import Store, StoreAwayError
from ammeter_server.db.queries import live as query
from ammeter_server.http import limits
from ammeter_server.http.problems import Problem
from ammeter_server.http.query_params import Ranks, ranks_of
from ammeter_server.http.server import ENDLESS_KEY

router = APIRouter(prefix="/api/v1/runs/{run}/live", tags=["runs"])

POLL_SECONDS = 0.5
"""Seconds between two polls for changes: one query for all followers."""

MAX_IDLE_SECONDS = 5.0
"""Seconds after which a follower's run is read without a known change. This covers values that depend on time; a
comment line keeps the connection alive."""

MAX_ANSWER_SECONDS = 60.0
"""Maximum seconds of one response. A client continues with its last id, which checks again whether its token is
valid."""

MAX_FOLLOWERS = 500
"""Maximum number of live connections of one process."""

MAX_FOLLOWERS_OF_ONE = 50
"""Maximum number of live connections of one reader: a token that a team shares has as many open pages."""

MESSAGE = {
    "type": "object",
    "required": ["id", "data"],
    "properties": {"id": {"type": "string"}, "data": {"type": "string", "contentMediaType": "application/json"}},
}

MESSAGES: dict[str, Any] = {
    "description": "The data of each message is a JSON object: `run` and `incidents` in the form of their resources,"
    " null if unchanged; new `events`, oldest first; and `series`, the new values. With the id of the last message as"
    " `Last-Event-ID`, the stream continues after it, at any collector of the same database.",
    "content": {"text/event-stream": {"schema": MESSAGE}},
}


class Watched:
    """The runs with followers. Only the event loop uses the wake-ups."""

    def __init__(self, store: Store) -> None:
        self.threads = CapacityLimiter(2)  # threads of their own: readers do not wait for followers
        self._store = store
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._of_reader: Counter[str] = Counter()
        self._seen: dict[str, tuple[Any, ...]] = {}
        self._polling: asyncio.Task[None] | None = None

    @contextmanager
    def changes_of(self, run: str, reader: str = "") -> Iterator[asyncio.Event]:
        """Registers a follower. The event is set whenever something of the run may have changed.

        Raises:
            Problem: 429 if the reader has too many live connections, 503 if all readers together have.
        """
        if self._of_reader[reader] >= MAX_FOLLOWERS_OF_ONE:
            detail = f"{MAX_FOLLOWERS_OF_ONE} of your live connections are open; close one, or retry later"
            raise limits.over("live", 429, detail, wait=10)
        if self._of_reader.total() >= MAX_FOLLOWERS:
            detail = f"{MAX_FOLLOWERS} live connections to this collector are open; retry later"
            raise limits.over("live", 503, detail, wait=10)
        changed = asyncio.Event()
        self._of_reader[reader] += 1
        self._waiting.setdefault(run, set()).add(changed)
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll())
        try:
            yield changed
        finally:
            self._of_reader[reader] -= 1
            if not self._of_reader[reader]:
                del self._of_reader[reader]
            self._waiting[run].discard(changed)
            if not self._waiting[run]:
                del self._waiting[run]
                self._seen.pop(run, None)

    async def _poll(self) -> None:
        while self._waiting:
            await asyncio.sleep(POLL_SECONDS)
            for run, state in (await to_thread.run_sync(self._states, limiter=self.threads)).items():
                if self._seen.get(run) != state:
                    self._seen[run] = state
                    for changed in self._waiting.get(run, ()):
                        changed.set()

    def _states(self) -> dict[str, tuple[Any, ...]]:
        try:
            with self._store.reading() as connection:
                return query.versions(connection, list(self._waiting))
        except Exception:  # noqa: BLE001 - followers read their run soon themselves, and report the error
            return {}


@router.get("", summary="Changes as server-sent events", responses={200: MESSAGES}, response_class=StreamingResponse)
async def follow(
    context: ContextDep,
    request: Request,
    run: str,
    names: Annotated[str, Query(description="Series to send as they grow: `loss,scale`. Default: none.")] = "",
    rank: Ranks = None,
    axis: StepAxis = "run",
    points: Annotated[int, Query(ge=16, le=10_000, description="Maximum points of a series per message.")] = 2000,
    last_event_id: Annotated[str | None, Header(description="The id of the last received message.")] = None,
) -> StreamingResponse:
    """Streams server-sent events: first the complete state, then changes within a second.

    Events and steps are those of the requested ranks, by default of the lowest. The response ends after a minute; a
    browser reconnects by itself.
    """
    wanted = Wanted(names_of(names) if names else (), ranks_of(rank), points, axis)
    cursor = change_feed.read_cursor(last_event_id)
    watched: Watched = request.app.state.watched
    await to_thread.run_sync(_check, context, run, limiter=watched.threads)
    request.scope[ENDLESS_KEY] = True
    messages = _messages(context, watched, run, wanted, cursor, request.scope[READER_KEY])
    first = await anext(messages)
    unbuffered = {"X-Accel-Buffering": "no"}  # by proxies
    return StreamingResponse(_all_messages(first, messages), media_type="text/event-stream", headers=unbuffered)


def _check(context: AppContext, run: str) -> None:
    with context.store.reading() as connection:
        require_run(connection, run)


async def _all_messages(first: bytes, remaining: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields all messages.

    Ends if the run is deleted or the database is unreachable; the next request reports the reason.
    """
    yield first
    with suppress(Problem, StoreAwayError):
        async for message in remaining:
            yield message


async def _messages(
    context: AppContext, watched: Watched, run: str, wanted: Wanted, cursor: Cursor, reader: str
) -> AsyncIterator[bytes]:
    ends = time.monotonic() + MAX_ANSWER_SECONDS
    with watched.changes_of(run, reader) as changed:
        yield b"retry: 1000\n\n"
        while time.monotonic() < ends:
            changed.clear()
            changes, cursor = await to_thread.run_sync(
                change_feed.since, context, run, wanted, cursor, limiter=watched.threads
            )
            yield _message(changes, cursor) if changes else b":\n\n"
            if len(changes.events) < change_feed.MAX_EVENTS:
                with move_on_after(min(MAX_IDLE_SECONDS, max(0.0, ends - time.monotonic()))):
                    await changed.wait()


def _message(changes: change_feed.Changes, cursor: Cursor) -> bytes:
    return b"id: %b\ndata: %b\n\n" % (cursor.written().encode(), msgspec.json.encode(changes))
