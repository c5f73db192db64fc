"""Counts wrong tokens by address; an address that tries many different ones has to wait.

A valid token is never counted and never delayed, so that guesses from the same address do not lock out its other
clients. A job that repeats one wrong token counts as one guess, whatever its number of ranks.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Callable

from cachetools import LRUCache, TTLCache

MAX_GUESSES = 20
"""Different wrong tokens from one address within WINDOW_SECONDS. A person mistypes a few."""

WINDOW_SECONDS = 60.0
MAX_ADDRESSES = 10_000
"""Number of addresses in the cache, the most recent ones."""


class TokenGuesses:
    """The wrong tokens that one collector process has received.

    Args:
        clock: Monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guesses: LRUCache[str, TTLCache[str, float]] = LRUCache(MAX_ADDRESSES)
        self._lock = threading.Lock()

    def add(self, address: str, sha256: str) -> float:
        """Counts a wrong token.

        Returns:
            Seconds until the address may try another one; 0 if at once.
        """
        with self._lock:
            empty: TTLCache[str, float] = TTLCache(MAX_GUESSES, WINDOW_SECONDS, self._clock)
            guesses = self._guesses.setdefault(network_of(address), empty)
            with guesses.timer as now:
                if sha256 in guesses:
                    return 0.0
                if len(guesses) >= MAX_GUESSES:
                    return WINDOW_SECONDS - (now - min(guesses.values()))
                guesses[sha256] = now
        return 0.0


def network_of(address: str) -> str:
    """The address; for IPv6 its /64 network, all of which one host can use."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return address if parsed.version == 4 else str(ipaddress.ip_network((parsed, 64), strict=False))
