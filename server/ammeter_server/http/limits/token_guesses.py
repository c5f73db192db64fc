"""Wrong tokens, counted by the address they come from: an address that tries many different ones has to wait.

A right token is never counted and never waits, so that the guesses of a neighbour behind the same address lock nobody
out; and a job that goes on sending one wrong token is one guess, however many ranks it has.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

MAX_GUESSES = 20
"""Different wrong tokens from one address within WINDOW. A person mistypes a few."""

WINDOW = 60.0
REMEMBERED = 10_000
"""Addresses that are kept, those that guessed last."""


class Guesses:
    """What one collector process has seen. clock: seconds, never going back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, dict[str, float]] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, address: str, sha256: str) -> float:
        """Counts a wrong token. Returns the seconds until the address may try another one; 0 for at once."""
        network = network_of(address)
        with self._lock:
            now = self._clock()
            tried = {known: at for known, at in self._wrong.get(network, {}).items() if at > now - WINDOW}
            if sha256 not in tried and len(tried) >= MAX_GUESSES:
                return WINDOW - (now - min(tried.values()))
            tried.setdefault(sha256, now)
            self._wrong[network] = tried
            self._wrong.move_to_end(network)
            if len(self._wrong) > REMEMBERED:
                self._wrong.popitem(last=False)
        return 0.0


def network_of(address: str) -> str:
    """The address; of IPv6 the network of 64 bits, all of which one host can have."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return address if found.version == 4 else str(ipaddress.ip_network((found, 64), strict=False))
