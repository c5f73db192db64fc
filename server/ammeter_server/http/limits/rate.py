"""How often somebody may ask: so much at once, and so much a second. A shipper sends four times a second, faster only
to catch up; a loop gone wild would take the database's one writer from everybody else."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

from ammeter_server.http import limits

A_SECOND = 500.0
BURST = 1_000.0
"""Requests of one stream: in the long run, and at once. No shipper comes near; what it holds back it keeps."""

REMEMBERED = 20_000
"""Streams, or whoever else asks, those heard last. One that is forgotten begins anew, which is at most a burst."""


class Pace:
    """For one collector process. Only its event loop touches it. clock: seconds, never going back."""

    def __init__(self, a_second: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.a_second = a_second
        self.burst = burst
        self._clock = clock
        self._left: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def is_over(self, who: Hashable) -> bool:
        """Counts a request of somebody. Returns whether it is one too many."""
        now = self._clock()
        left, since = self._left.pop(who, (self.burst, now))
        left = min(self.burst, left + (now - since) * self.a_second)
        over = left < 1
        self._left[who] = left - (not over), now
        if len(self._left) > REMEMBERED:
            self._left.popitem(last=False)
        return over


def of_streams(clock: Callable[[], float] = time.monotonic) -> Pace:
    """The pace of those who send."""
    return Pace(A_SECOND, BURST, clock)


def check(pace: Pace, run: str, stream: str, project: str | None = None) -> None:
    """Counts a request of a stream, by whose token it is. Raises a 429 problem that says when to ask again."""
    if pace.is_over((run[:64], stream[:64], project)):
        said = f"more than {A_SECOND:.0f} requests a second are of stream {stream[:64]!r}; wait, and send more at once"
        raise limits.over("requests", 429, said, wait=1)
