"""Limits each reader, so that frequent requests starve neither ingest nor other readers.

A reader is a token together with all page sessions that it opened, or the address of a request without a valid token.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from anyio import CapacityLimiter, to_thread
from cachetools import LRUCache
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ammeter_server.auth import callers
from ammeter_server.context import AppContext, app_context
from ammeter_server.db import StoreAwayError
from ammeter_server.db.queries.tokens import SESSION_OF
from ammeter_server.http import limits
from ammeter_server.http.limits.rate import RateLimiter
from ammeter_server.http.limits.token_guesses import network_of
from ammeter_server.http.problems import Problem, answer

THREADS = 4
"""Requests that are processed at once. Each competes for the interpreter with the thread that commits."""

THREADS_PER_READER = 3
"""Threads that one reader can use; another reader always finds a free one."""

MAX_WAITING = 100
"""Maximum unanswered requests of one reader. A browser sends six at a time, a wall of boards some dozens."""

REQUESTS_PER_SECOND = 100.0
BURST_REQUESTS = 2_000.0
"""Requests of one reader per second, and its burst. An open page sends four a second."""

CHANGES_PER_SECOND = 1.0
BURST_CHANGES = 300.0
"""Limits of changes, per second and as a burst. Each change is written to the audit log, which is never trimmed."""

READER_KEY = "ammeter.reader"
"""Key in the scope of a request for the name of its reader."""

MAX_CACHED_OWNERS = 10_000
"""Number of valid tokens and sessions whose reader is cached, the most recent ones."""

LOOKUP_THREADS = 2
"""Threads of their own for tokens that are not cached. Known tokens do not wait for guesses."""

UNLIMITED_PATHS = ("/livez", "/static/")
"""Paths that cost next to nothing or have to respond under any load."""


@dataclass
class _Reader:
    """The unanswered requests of one reader."""

    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(THREADS_PER_READER))
    requests: int = 0


class ReaderLimits:
    """ASGI middleware that limits each reader's rate and concurrency, with 429 beyond.

    Ingest has its own rate limit. Used only by the event loop.
    """

    def __init__(self, app: ASGIApp, rate: RateLimiter | None = None) -> None:
        self.app = app
        self._rate = rate or RateLimiter(REQUESTS_PER_SECOND, BURST_REQUESTS)
        self._change_rate = RateLimiter(CHANGES_PER_SECOND, BURST_CHANGES)
        self._readers: dict[str, _Reader] = {}
        self._owners: LRUCache[str, str] = LRUCache(MAX_CACHED_OWNERS)
        self._threads = CapacityLimiter(LOOKUP_THREADS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_unlimited(scope):
            await self.app(scope, receive, send)
            return
        name = scope[READER_KEY] = await self._reader_of(HTTPConnection(scope))
        try:
            self._check(name, scope["method"])
        except Problem as problem:
            await answer(problem)(scope, receive, send)
            return
        await self._run(name, scope, receive, send)

    async def _run(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the application in one of the reader's slots.

        The slot is free again when the response begins, so that clients that read slowly delay nobody.
        """
        reader = self._readers.setdefault(name, _Reader())
        reader.requests += 1
        acquired, unanswered = False, True

        def release() -> None:
            nonlocal acquired, unanswered
            if acquired:
                reader.slots.release()
            if unanswered:
                reader.requests -= 1
                if not reader.requests:
                    del self._readers[name]
            acquired = unanswered = False

        async def release_and_send(message: Message) -> None:
            release()
            await send(message)

        try:
            await reader.slots.acquire()
            acquired = True
            await self.app(scope, receive, release_and_send)
        finally:
            release()

    async def _reader_of(self, connection: HTTPConnection) -> str:
        """The owner of the first valid token or session, else the address.

        It serves the limits only: every request checks again whether its token is valid.
        """
        for sha256, _ in callers.secrets_of(connection):
            owner = self._owners.get(sha256)
            if owner is None:
                owner = await to_thread.run_sync(_owner, app_context(connection), sha256, limiter=self._threads)
            if owner is not None:
                self._owners[sha256] = owner
                return owner
        return f"address {network_of(callers.address_of(connection))}"

    def _check(self, name: str, method: str) -> None:
        """Checks the limits of a reader.

        Raises:
            Problem: 429 with the time of the next try.
        """
        if name in self._readers and self._readers[name].requests >= MAX_WAITING:
            detail = f"{MAX_WAITING} requests of this client are unanswered; wait for the responses"
            raise limits.over("reads", 429, detail, wait=1)
        if self._rate.is_over(name):
            detail = f"the client sends more than {REQUESTS_PER_SECOND:.0f} requests a second; send fewer"
            raise limits.over("reads", 429, detail, wait=1)
        if method in ("POST", "DELETE") and self._change_rate.is_over(name):
            detail = f"the client has made {BURST_CHANGES:.0f} changes; send at most one a second from now on"
            raise limits.over("changes", 429, detail, wait=1)


def set_pool_size() -> None:
    """Sets the size of the event loop's default thread pool, which readers use."""
    to_thread.current_default_thread_limiter().total_tokens = THREADS


def _is_unlimited(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.startswith(UNLIMITED_PATHS) or (scope["method"] == "POST" and path.endswith("/frames"))


def _owner(context: AppContext, sha256: str) -> str | None:
    """The token with this hash, or the token that opened the session with this hash."""
    try:
        caller = callers.find(context, sha256)
    except StoreAwayError:  # the response to the request itself reports it
        return None
    return f"token {caller.name.removeprefix(SESSION_OF)}" if caller else None
