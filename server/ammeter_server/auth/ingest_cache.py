"""Who may send frames, asked of the database once a second per token and not with every batch."""

from __future__ import annotations

import time
from collections.abc import Callable

from anyio import CapacityLimiter, to_thread
from starlette.requests import HTTPConnection

from ammeter_server.auth import callers
from ammeter_server.auth.callers import Caller
from ammeter_server.auth.tokens import fingerprint

FRESH = 1.0
"""Seconds for which whoever was let in is let in again unasked: a token that is revoked may write for so long."""

MAX_TOKENS = 10_000
"""Tokens that are remembered; beyond them all are asked again."""

THREADS = 4
"""That ask, of their own: who sends frames does not wait for readers."""


class Admission:
    """Those that one collector process has let in. Only its event loop touches it. clock: seconds, never going back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._let_in: dict[str, tuple[float, Caller]] = {}
        self._threads = CapacityLimiter(THREADS)

    async def ingest(self, connection: HTTPConnection) -> Caller:
        """The caller. Raises the problems of auth.ingest."""
        shown = [connection.headers.get(name, "") for name in ("authorization", "host")]
        said = fingerprint("\n".join((*shown, callers.proxy_header(connection) or "")))
        until, caller = self._let_in.get(said, (0.0, None))
        if caller is not None and self._clock() < until and not _expired(caller):
            return caller
        caller = await to_thread.run_sync(callers.ingest, connection, limiter=self._threads)
        if len(self._let_in) >= MAX_TOKENS:
            self._let_in.clear()
        self._let_in[said] = self._clock() + FRESH, caller
        return caller


def _expired(caller: Caller) -> bool:
    return caller.expires is not None and caller.expires <= time.time_ns()
