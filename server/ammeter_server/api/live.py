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
from ammeter_server.api.runs import found
from ammeter_server.api.series import names_of
from ammeter_server.auth.reader_limits import READER
from ammeter_server.context import AppContext, ContextDep
from ammeter_server.curves.run_axis import StepAxis
from ammeter_server.db import Store, StoreAwayError
from ammeter_server.db.queries import live as query
from ammeter_server.http import limits
from ammeter_server.http.problems import Problem
from ammeter_server.http.query_params import Ranks, ranks_of
from ammeter_server.http.server import ENDLESS

router = APIRouter(prefix="/api/v1/runs/{run}/live", tags=["runs"])

LOOK_SECONDS = 0.5
"""Seconds between two polls for changes: one query for all followers."""

STILL_SECONDS = 5.0
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
    "description": "Messages whose data is one object in JSON: `run` and `incidents` as their own resources have them,"
    " null where they have not changed, `events` that came, oldest first, and `series`, what they grew by. The id of"
    " the last one as `Last-Event-ID` goes on behind it, at any collector of the same database.",
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
        self._looking: asyncio.Task[None] | None = None

    @contextmanager
    def changes_of(self, run: str, reader: str = "") -> Iterator[asyncio.Event]:
        """Registers a follower. The event is set whenever something of the run may have changed.

        Raises:
            Problem: 429 if the reader has too many live connections, 503 if all readers together have.
        """
        if self._of_reader[reader] >= MAX_FOLLOWERS_OF_ONE:
            said = f"{MAX_FOLLOWERS_OF_ONE} live connections of yours are open already; close one, or ask again later"
            raise limits.over("live", 429, said, wait=10)
        if self._of_reader.total() >= MAX_FOLLOWERS:
            said = f"{MAX_FOLLOWERS} live connections to this collector are open already; ask again later"
            raise limits.over("live", 503, said, wait=10)
        changed = asyncio.Event()
        self._of_reader[reader] += 1
        self._waiting.setdefault(run, set()).add(changed)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
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

    async def _look(self) -> None:
        while self._waiting:
            await asyncio.sleep(LOOK_SECONDS)
            for run, state in (await to_thread.run_sync(self._states, limiter=self.threads)).items():
                if self._seen.get(run) != state:
                    self._seen[run] = state
                    for changed in self._waiting.get(run, ()):
                        changed.set()

    def _states(self) -> dict[str, tuple[Any, ...]]:
        try:
            with self._store.reading() as connection:
                return query.versions(connection, list(self._waiting))
        except Exception:  # noqa: BLE001 - who is told looks for himself soon, and hears what is wrong
            return {}


@router.get("", summary="What changes, as it changes", responses={200: MESSAGES}, response_class=StreamingResponse)
async def follow(
    context: ContextDep,
    request: Request,
    run: str,
    names: Annotated[str, Query(description="Series that are told as they grow: `loss,scale`. Without it none.")] = "",
    rank: Ranks = None,
    axis: StepAxis = "run",
    points: Annotated[int, Query(ge=16, le=10_000, description="Points of one series in one message at most.")] = 2000,
    last_event_id: Annotated[str | None, Header(description="The id of the last message that came.")] = None,
) -> StreamingResponse:
    """Streams server-sent events: first the complete state, then changes within a second.

    Events and steps are those of the requested ranks, by default of the lowest. The response ends after a minute; a
    browser reconnects by itself.
    """
    wanted = Wanted(names_of(names) if names else (), ranks_of(rank), points, axis)
    cursor = change_feed.read_cursor(last_event_id)
    watched: Watched = request.app.state.watched
    await to_thread.run_sync(_check, context, run, limiter=watched.threads)
    request.scope[ENDLESS] = True
    messages = _messages(context, watched, run, wanted, cursor, request.scope[READER])
    first = await anext(messages)
    unbuffered = {"X-Accel-Buffering": "no"}  # by proxies
    return StreamingResponse(_behind(first, messages), media_type="text/event-stream", headers=unbuffered)


def _check(context: AppContext, run: str) -> None:
    with context.store.reading() as connection:
        found(connection, run)


async def _behind(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields all messages.

    Ends if the run is deleted or the database is unreachable; the next request reports the reason.
    """
    yield first
    with suppress(Problem, StoreAwayError):
        async for message in rest:
            yield message


async def _messages(
    context: AppContext, watched: Watched, run: str, wanted: Wanted, cursor: Cursor, reader: str
) -> AsyncIterator[bytes]:
    ends = time.monotonic() + MAX_ANSWER_SECONDS
    with watched.changes_of(run, reader) as changed:
        yield b"retry: 1000\n\n"
        while time.monotonic() < ends:
            changed.clear()
            told, cursor = await to_thread.run_sync(
                change_feed.since, context, run, wanted, cursor, limiter=watched.threads
            )
            yield _message(told, cursor) if told else b":\n\n"
            if len(told.events) < change_feed.MAX_EVENTS:
                with move_on_after(min(STILL_SECONDS, max(0.0, ends - time.monotonic()))):
                    await changed.wait()


def _message(told: change_feed.Changes, cursor: Cursor) -> bytes:
    return b"id: %b\ndata: %b\n\n" % (cursor.written().encode(), msgspec.json.encode(told))
