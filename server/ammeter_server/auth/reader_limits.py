"""How much one reader may ask for, so that a dashboard that asks in a loop starves neither senders nor other readers.

A reader is a token, with all sessions of the page that it opened and however requests spell it; without a right one
it is an address.
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
"""Questions that are answered at once. Each takes its share of the interpreter, and the thread that commits has one."""

THREADS_PER_READER = 3
"""Of them, those of one reader: another always finds a free one."""

WAITING = 100
"""Questions of one reader that wait for their turn. A browser asks six at a time, a wall of boards some dozens."""

A_SECOND = 100.0
BURST = 2_000.0
"""Questions of one reader, in the long run and at once. An open page asks four times a second."""

CHANGES_A_SECOND = 1.0
CHANGES_BURST = 300.0
"""Of those, what changes something: each is written down for the audit, which keeps all."""

READER = "ammeter.reader"
"""In the scope of a question: the reader that asks it."""

REMEMBERED = 10_000
"""Right tokens and sessions whose reader is known without asking the database, those seen last."""

LOOK_UP_THREADS = 2
"""Threads of their own for tokens seen for the first time: one that is known waits for nobody who guesses."""

FREE = ("/livez", "/static/")
"""What costs next to nothing, and what has to be answered however much is asked."""


@dataclass
class _Reader:
    """Those questions of one reader that are not answered yet."""

    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(THREADS_PER_READER))
    asked: int = 0


class Readers:
    """ASGI middleware: lets each reader ask so much and so often, and says 429 beyond. Frames have a pace of their own.

    Only the event loop touches it.
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
        """Asks the application in turn. The turn ends as the answer begins: who reads slowly, or for ever, holds up
        nobody."""
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
        """The owner of the first right token or session, else the address. It is for limits alone: whether the token
        is still right is asked with each question."""
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
        """Raises a 429 problem that says when to ask again."""
        if who in self._readers and self._readers[who].asked >= WAITING:
            raise limits.over("reads", 429, f"{WAITING} questions of yours are not answered yet; wait for them", wait=1)
        if self._pace.is_over(who):
            said = f"you ask more than {A_SECOND:.0f} questions a second; ask less often"
            raise limits.over("reads", 429, said, wait=1)
        if method in ("POST", "DELETE") and self._changes.is_over(who):
            said = f"you have changed something {CHANGES_BURST:.0f} times; from now on once a second"
            raise limits.over("changes", 429, said, wait=1)


def settle() -> None:
    """Within an event loop: its threads for whatever has no own ones are those of readers."""
    to_thread.current_default_thread_limiter().total_tokens = THREADS


def _is_free(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.startswith(FREE) or (scope["method"] == "POST" and path.endswith("/frames"))


def _owner(context: AppContext, sha256: str) -> str | None:
    """The token with this hash, or the one that opened the session with it."""
    try:
        found = callers.find(context, sha256)
    except StoreAwayError:  # the answer to the question itself says so
        return None
    return f"token {found.name.removeprefix(SESSION_OF)}" if found else None
