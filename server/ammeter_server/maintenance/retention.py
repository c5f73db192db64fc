"""What goes, and when: whole days, by age and by what the database takes on disk. Frames that come in go on."""

from __future__ import annotations

import logging

from ammeter_server.config.settings import Settings
from ammeter_server.db import Store, partitions
from ammeter_server.process import self_metrics

log = logging.getLogger(__name__)


def retain(store: Store, settings: Settings, today: int) -> None:
    """Takes away days that are older than is kept, then the oldest ones while the database is larger than it may be.

    today: days since 1970, UTC. A run goes with the last of its days; totals of the fleet stay.
    """
    if settings.keep_days:
        before = today - settings.keep_days
        partitions.drop(store, before)
        partitions.forget_runs(store, before)
    if settings.keep_bytes:
        _keep_within(store, settings.keep_bytes, today)
    partitions.shrink(store)


def _keep_within(store: Store, limit: int, today: int) -> None:
    while True:
        with store.reading() as connection:
            used, oldest = partitions.used_bytes(connection), partitions.oldest(connection)
        if used <= limit:
            return
        if oldest is None or oldest >= today:
            self_metrics.limited.labels("storage").inc()
            log.warning("the database takes %d bytes, keep_bytes is %d, and nothing is older than today", used, limit)
            return
        if not partitions.drop(store, oldest + 1):
            return  # somebody reads it; it is tried again
