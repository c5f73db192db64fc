"""What goes, and when: whole days, by age and by what the database takes on disk. Frames that come in go on."""

from __future__ import annotations

import logging

from ammeter_server import meters
from ammeter_server.settings import Settings
from ammeter_server.store import Store, days

log = logging.getLogger(__name__)


def retain(store: Store, settings: Settings, today: int) -> None:
    """Takes away days that are older than is kept, then the oldest ones while the database is larger than it may be.

    today: days since 1970, UTC. A run goes with the last of its days; totals of the fleet stay.
    """
    if settings.keep_days:
        before = today - settings.keep_days
        days.drop(store, before)
        days.forget_runs(store, before)
    if settings.keep_bytes:
        _keep_within(store, settings.keep_bytes, today)
    days.shrink(store)


def _keep_within(store: Store, limit: int, today: int) -> None:
    while True:
        with store.reading() as connection:
            used, oldest = days.used_bytes(connection), days.oldest(connection)
        if used <= limit:
            return
        if oldest is None or oldest >= today:
            meters.limited.labels("storage").inc()
            log.warning("the database takes %d bytes, keep_bytes is %d, and nothing is older than today", used, limit)
            return
        if not days.drop(store, oldest + 1):
            return  # somebody reads it; it is tried again
