"""Counts wrong tokens by address; an address that tries many different ones has to wait.

A valid token is never counted and never delayed, so that guesses from the same address do not lock out its other
clients. A job that repeats one wrong token counts as one guess, whatever its number of ranks.
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
"""Number of addresses that are remembered, the most recent ones."""


class Guesses:
    """The wrong tokens that one collector process has received.

    Args:
        clock: Monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, dict[str, float]] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, address: str, sha256: str) -> float:
        """Counts a wrong token.

        Returns:
            Seconds until the address may try another one; 0 if at once.
        """
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
    """The address; for IPv6 its /64 network, all of which one host can use."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return address if found.version == 4 else str(ipaddress.ip_network((found, 64), strict=False))
