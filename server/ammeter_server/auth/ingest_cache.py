"""Caches the authentication of ingest: one database query a second per token."""

from __future__ import annotations

import time
from collections.abc import Callable

from anyio import CapacityLimiter, to_thread
from starlette.requests import HTTPConnection

from ammeter_server.auth import callers
from ammeter_server.auth.callers import Caller
from ammeter_server.auth.tokens import fingerprint

FRESH = 1.0
"""Lifetime of an entry in seconds. A revoked token can still write for this time."""

MAX_TOKENS = 10_000
"""Maximum number of cached tokens; beyond it the cache is cleared."""

THREADS = 4
"""Threads for authentication, separate from those of readers: ingest does not wait for readers."""


class Admission:
    """Cache of authenticated callers in one collector process. Used only by its event loop.

    Args:
        clock: Monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._let_in: dict[str, tuple[float, Caller]] = {}
        self._threads = CapacityLimiter(THREADS)

    async def ingest(self, connection: HTTPConnection) -> Caller:
        """Returns the caller.

        Raises:
            Problem: See callers.ingest.
        """
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
