"""Rate limits: a burst, and a sustained number of requests per second.

A shipper sends four times a second, and faster only to catch up. A runaway loop would keep the only writer of the
database busy for all other streams.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

from cachetools import LRUCache

from ammeter_server.http import limits

REQUESTS_PER_SECOND = 500.0
BURST_REQUESTS = 1_000.0
"""Of one stream. No shipper comes near; a refused shipper keeps its data."""

MAX_CLIENTS = 20_000
"""Number of streams or other clients in the cache, the most recent ones. An evicted one starts anew, which grants it
one burst at most."""


class RateLimiter:
    """Token buckets of one collector process. Used only by its event loop.

    Args:
        per_second: Sustained requests.
        burst: Requests at once.
        clock: Monotonic time in seconds.
    """

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_second = per_second
        self.burst = burst
        self._clock = clock
        self._buckets: LRUCache[Hashable, tuple[float, float]] = LRUCache(MAX_CLIENTS)

    def is_over(self, client: Hashable) -> bool:
        """Counts a request. Returns whether it exceeds the limit."""
        now = self._clock()
        tokens, since = self._buckets.get(client, (self.burst, now))
        tokens = min(self.burst, tokens + (now - since) * self.per_second)
        over = tokens < 1
        self._buckets[client] = tokens - (not over), now
        return over


def of_streams(clock: Callable[[], float] = time.monotonic) -> RateLimiter:
    """The rate limit of ingest, per stream."""
    return RateLimiter(REQUESTS_PER_SECOND, BURST_REQUESTS, clock)


def check(limiter: RateLimiter, run: str, stream: str, project: str | None = None) -> None:
    """Counts a request of a stream.

    Args:
        project: The project of the request's token.

    Raises:
        Problem: 429 with the time of the next try, if the stream exceeds its rate.
    """
    if limiter.is_over((run[:64], stream[:64], project)):
        detail = f"stream {stream[:64]!r} sends more than {REQUESTS_PER_SECOND:.0f} requests a second"
        raise limits.over("requests", 429, f"{detail}; send larger batches", wait=1)
