"""Wrong tokens, counted by where they come from: who tries many different ones is not heard for a while.

A job that keeps sending one wrong token is one guess, however many ranks it has; and a token that was right is heard
always, so that a neighbour's guesses shut nobody out.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

MOST = 20
"""Different wrong tokens from one address within WINDOW. A person mistypes a few."""

WINDOW = 60.0
REMEMBERED = 10_000
"""Addresses and right tokens that are kept, the ones seen last."""


class Guesses:
    """What one collector process has seen. clock: seconds, never going back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, dict[str, float]] = OrderedDict()
        self._right: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def wait(self, address: str, sha256: str) -> float:
        """Seconds until this token is looked at when it comes from there; 0 for at once."""
        with self._lock:
            tried = self._lately(_place(address))
            if sha256 in self._right or sha256 in tried or len(tried) < MOST:
                return 0.0
            return WINDOW - (self._clock() - min(tried.values()))

    def note(self, address: str, sha256: str, *, right: bool) -> None:
        """What came of a token that was looked at."""
        with self._lock:
            if right:
                _keep(self._right, sha256, None)
                return
            self._right.pop(sha256, None)
            tried = self._lately(_place(address))
            tried.setdefault(sha256, self._clock())
            _keep(self._wrong, _place(address), tried)

    def _lately(self, place: str) -> dict[str, float]:
        since = self._clock() - WINDOW
        return {sha256: at for sha256, at in self._wrong.get(place, {}).items() if at > since}


def _place(address: str) -> str:
    """The address; of IPv6 the network of 64 bits, all of which one host can have."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return address if found.version == 4 else str(ipaddress.ip_network((found, 64), strict=False))


def _keep(known: OrderedDict[str, Any], name: str, value: Any) -> None:
    known[name] = value
    known.move_to_end(name)
    if len(known) > REMEMBERED:
        known.popitem(last=False)
