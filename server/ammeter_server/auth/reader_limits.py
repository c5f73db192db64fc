"""Limits each reader, so that frequent requests starve neither ingest nor other readers.

A reader is a token together with all page sessions that it opened, or the address of a request without a valid token.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from anyio import CapacityLimiter, to_thread
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ammeter_server.auth import callers
from ammeter_server.context import AppContext, app_context
from ammeter_server.db import StoreAwayError
from ammeter_server.db.queries.tokens import SESSION_OF
from ammeter_server.http import limits
from ammeter_server.http.limits.rate import Pace
from ammeter_server.http.limits.token_guesses import network_of
from ammeter_server.http.problems import Problem, answer

THREADS = 4
"""Requests that are processed at once. Each competes for the interpreter with the thread that commits."""

THREADS_PER_READER = 3
"""Threads that one reader can use; another reader always finds a free one."""

WAITING = 100
"""Maximum unanswered requests of one reader. A browser sends six at a time, a wall of boards some dozens."""

A_SECOND = 100.0
BURST = 2_000.0
"""Requests of one reader per second, and its burst. An open page sends four a second."""

CHANGES_A_SECOND = 1.0
CHANGES_BURST = 300.0
"""Limits of changes, per second and as a burst. Each change is written to the audit log, which is never trimmed."""

READER = "ammeter.reader"
"""Key in the scope of a request for the name of its reader."""

REMEMBERED = 10_000
"""Number of valid tokens and sessions whose reader is cached, the most recent ones."""

LOOK_UP_THREADS = 2
"""Threads of their own for tokens that are not cached. Known tokens do not wait for guesses."""

FREE = ("/livez", "/static/")
"""Paths that cost next to nothing or have to respond under any load."""


@dataclass
class _Reader:
    """The unanswered requests of one reader."""

    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(THREADS_PER_READER))
    asked: int = 0


class Readers:
    """ASGI middleware that limits each reader's rate and concurrency, with 429 beyond.

    Ingest has its own rate limit. Used only by the event loop.
    """

    def __init__(self, app: ASGIApp, pace: Pace | None = None) -> None:
        self.app = app
        self._pace = pace or Pace(A_SECOND, BURST)
        self._changes = Pace(CHANGES_A_SECOND, CHANGES_BURST)
        self._readers: dict[str, _Reader] = {}
        self._owners: OrderedDict[str, str] = OrderedDict()
        self._threads = CapacityLimiter(LOOK_UP_THREADS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_free(scope):
            await self.app(scope, receive, send)
            return
        who = scope[READER] = await self._reader_of(HTTPConnection(scope))
        try:
            self._check(who, scope["method"])
        except Problem as problem:
            await answer(problem)(scope, receive, send)
            return
        await self._ask(who, scope, receive, send)

    async def _ask(self, who: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the application in turn.

        The turn ends with the beginning of the response, so that clients that read slowly delay nobody.
        """
        reader = self._readers.setdefault(who, _Reader())
        reader.asked += 1
        held, waits = False, True

        def leave() -> None:
            nonlocal held, waits
            if held:
                reader.turn.release()
            if waits:
                reader.asked -= 1
                if not reader.asked:
                    del self._readers[who]
            held = waits = False

        async def send_and_leave(message: Message) -> None:
            leave()
            await send(message)

        try:
            await reader.turn.acquire()
            held = True
            await self.app(scope, receive, send_and_leave)
        finally:
            leave()

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
                self._owners.move_to_end(sha256)
                if len(self._owners) > REMEMBERED:
                    self._owners.popitem(last=False)
                return owner
        return f"address {network_of(callers.address_of(connection))}"

    def _check(self, who: str, method: str) -> None:
        """Checks the limits of a reader.

        Raises:
            Problem: 429 with the time of the next try.
        """
        if who in self._readers and self._readers[who].asked >= WAITING:
            raise limits.over("reads", 429, f"{WAITING} questions of yours are not answered yet; wait for them", wait=1)
        if self._pace.is_over(who):
            said = f"you ask more than {A_SECOND:.0f} questions a second; ask less often"
            raise limits.over("reads", 429, said, wait=1)
        if method in ("POST", "DELETE") and self._changes.is_over(who):
            said = f"you have changed something {CHANGES_BURST:.0f} times; from now on once a second"
            raise limits.over("changes", 429, said, wait=1)


def settle() -> None:
    """Sets the size of the event loop's default thread pool, which readers use."""
    to_thread.current_default_thread_limiter().total_tokens = THREADS


def _is_free(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.startswith(FREE) or (scope["method"] == "POST" and path.endswith("/frames"))


def _owner(context: AppContext, sha256: str) -> str | None:
    """The token with this hash, or the token that opened the session with this hash."""
    try:
        found = callers.find(context, sha256)
    except StoreAwayError:  # the response to the request itself reports it
        return None
    return f"token {found.name.removeprefix(SESSION_OF)}" if found else None
