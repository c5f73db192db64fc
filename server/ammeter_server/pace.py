"""How often one stream may be sent to. A shipper sends four times a second, faster only to catch up; a loop gone wild
would take the database's one writer from everybody else."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from ammeter_server import limits

A_SECOND = 500.0
BURST = 1_000.0
"""Requests of one stream: in the long run, and at once. No shipper comes near; what it holds back it keeps."""

REMEMBERED = 20_000
"""Streams, those heard last. One that is forgotten begins anew, which is at most a burst."""


class Pace:
    """For one collector process. Only its event loop touches it. clock: seconds, never going back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def check(self, run: str, stream: str) -> None:
        """Counts a request. Raises a 429 problem that says when to ask again."""
        now, place = self._clock(), (run[:64], stream[:64])
        left, since = self._left.pop(place, (BURST, now))
        left = min(BURST, left + (now - since) * A_SECOND)
        if left < 1:
            self._left[place] = left, now
            said = (
                f"more than {A_SECOND:.0f} requests a second are of stream {stream[:64]!r}; wait, and send more at once"
            )
            raise limits.over("requests", 429, said, wait=1)
        self._left[place] = left - 1, now
        if len(self._left) > REMEMBERED:
            self._left.popitem(last=False)
