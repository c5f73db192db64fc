"""Rate limits: a burst, and a sustained number of requests per second.

A shipper sends four times a second, and faster only to catch up. A runaway loop would keep the only writer of the
database busy for all other streams.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

from ammeter_server.http import limits

A_SECOND = 500.0
BURST = 1_000.0
"""Sustained requests per second of one stream, and its burst. No shipper comes near; a refused shipper keeps its
data."""

REMEMBERED = 20_000
"""Number of streams or other clients that are remembered, the most recent ones. A forgotten one starts anew, which
grants it one burst at most."""


class Pace:
    """Token buckets of one collector process. Used only by its event loop.

    Args:
        clock: Monotonic time in seconds.
    """

    def __init__(self, a_second: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.a_second = a_second
        self.burst = burst
        self._clock = clock
        self._left: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def is_over(self, who: Hashable) -> bool:
        """Counts a request. Returns whether it exceeds the limit."""
        now = self._clock()
        left, since = self._left.pop(who, (self.burst, now))
        left = min(self.burst, left + (now - since) * self.a_second)
        over = left < 1
        self._left[who] = left - (not over), now
        if len(self._left) > REMEMBERED:
            self._left.popitem(last=False)
        return over


def of_streams(clock: Callable[[], float] = time.monotonic) -> Pace:
    """The rate limit of ingest, per stream."""
    return Pace(A_SECOND, BURST, clock)


def check(pace: Pace, run: str, stream: str, project: str | None = None) -> None:
    """Counts a request of a stream.

    Args:
        project: The project of the request's token.

    Raises:
        Problem: 429 with the time of the next try, if the stream exceeds its rate.
    """
    if pace.is_over((run[:64], stream[:64], project)):
        said = f"more than {A_SECOND:.0f} requests a second are of stream {stream[:64]!r}; wait, and send more at once"
        raise limits.over("requests", 429, said, wait=1)
