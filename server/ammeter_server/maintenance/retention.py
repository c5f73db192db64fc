"""Deletes whole days by age and by the size of the database, while ingest continues."""

from __future__ import annotations

import logging

from ammeter_server.config.settings import Settings
from ammeter_server.db import Store, partitions
from ammeter_server.process import self_metrics

log = logging.getLogger(__name__)


def retain(store: Store, settings: Settings, today: int) -> None:
    """Deletes days above the maximum age, then the oldest while the database is too large.

    A run is deleted with the last of its days. Fleet totals remain.

    Args:
        today: Days since 1970, UTC.
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
            log.warning("the database has %d bytes, keep_bytes is %d, and no data is older than today", used, limit)
            return
        if not partitions.drop(store, oldest + 1):
            return  # a reader uses it; the next round tries again
