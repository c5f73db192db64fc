"""Work on many rows in transactions that nobody has to wait for long. What a power cut undoes is done again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy import Connection

from ammeter_server.db.engine import Store

SLICE_SECONDS = 0.02
"""Seconds that a transaction in the background should take: frames that come in wait for it on SQLite."""

MAX_SLICE_ITEMS = 10_000

Item = TypeVar("Item")


class Pace:
    """How many at a time: as many as fitted into a slice last time, at most twice as many."""

    def __init__(self) -> None:
        self.size = 1

    def took(self, count: int, seconds: float) -> None:
        if count < self.size and seconds < SLICE_SECONDS:
            return  # which says nothing of more
        fitting = int(count * SLICE_SECONDS / max(seconds, 1e-6))
        self.size = max(1, min(2 * self.size, fitting, MAX_SLICE_ITEMS))


def in_slices(
    store: Store, items: Sequence[Item], work: Callable[[Connection, Sequence[Item]], object], pace: Pace | None = None
) -> None:
    """Does the work on all items, some in a transaction, and leaves others their turn in between. pace: of such work
    that was done before."""
    pace, at = pace or Pace(), 0
    while at < len(items):
        some = items[at : at + pace.size]
        with store.writing(durable=False) as connection:
            began = time.monotonic()
            work(connection, some)
        at += len(some)
        _rest(store, pace, len(some), began)


def until_done(store: Store, work: Callable[[Connection, int], int]) -> int:
    """Has up to so many done at a time until fewer were left. Returns how many were done altogether."""
    pace, total = Pace(), 0
    while True:
        with store.writing(durable=False) as connection:
            began = time.monotonic()
            done = work(connection, pace.size)
        total += done
        if done < pace.size:
            return total
        _rest(store, pace, done, began)


def _rest(store: Store, pace: Pace, count: int, began: float) -> None:
    took = time.monotonic() - began
    pace.took(count, took)
    if store.is_sqlite:  # its one lock goes to whoever asks for it next
        time.sleep(min(took, SLICE_SECONDS) / 4)
