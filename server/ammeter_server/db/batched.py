"""Processes many rows in short transactions, so that other writers wait only briefly.

The transactions are not durable: work that a power cut undoes is repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy import Connection

from ammeter_server.db.engine import Store

SLICE_SECONDS = 0.02
"""Target duration of a background transaction: on SQLite, ingest waits for it."""

MAX_SLICE_ITEMS = 10_000

Item = TypeVar("Item")


class Pace:
    """Adapts the number of items per transaction to SLICE_SECONDS.

    At most doubles from one transaction to the next.
    """

    def __init__(self) -> None:
        self.size = 1

    def record(self, count: int, seconds: float) -> None:
        if count < self.size and seconds < SLICE_SECONDS:
            return  # too few items to judge a larger number by
        fitting = int(count * SLICE_SECONDS / max(seconds, 1e-6))
        self.size = max(1, min(2 * self.size, fitting, MAX_SLICE_ITEMS))


def in_slices(
    store: Store, items: Sequence[Item], work: Callable[[Connection, Sequence[Item]], object], pace: Pace | None = None
) -> None:
    """Processes all items, several per transaction, and lets other writers in between.

    Args:
        store: The database.
        items: The items.
        work: Processes some of them in a transaction.
        pace: The pace of earlier work of the same kind, to begin with.
    """
    pace, at = pace or Pace(), 0
    while at < len(items):
        batch = items[at : at + pace.size]
        with store.writing(durable=False) as connection:
            began = time.monotonic()
            work(connection, batch)
        at += len(batch)
        _yield_to_writers(store, pace, len(batch), began)


def until_done(store: Store, work: Callable[[Connection, int], int]) -> int:
    """Repeats work with a limit on its items until it processes fewer than the limit.

    Returns the total number of processed items.
    """
    pace, total = Pace(), 0
    while True:
        with store.writing(durable=False) as connection:
            began = time.monotonic()
            done = work(connection, pace.size)
        total += done
        if done < pace.size:
            return total
        _yield_to_writers(store, pace, done, began)


def _yield_to_writers(store: Store, pace: Pace, count: int, began: float) -> None:
    record = time.monotonic() - began
    pace.record(count, record)
    if store.is_sqlite:  # lets a waiting writer take SQLite's one lock
        time.sleep(min(record, SLICE_SECONDS) / 4)
