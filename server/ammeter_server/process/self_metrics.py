"""Metrics of this process for /metrics/self.

A series whose labels are known starts with 0. For Prometheus, a series that appears with 1 has no increase, and an
alert on its first increase would not fire.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

from ammeter.verdicts import ALL
from ammeter.verdicts.processes.agent_blind import REASONS

OTHER = "_other"

LIMITS = (
    *("body", "held", "slow", "guesses", "items", "said", "unpacked", "tensors", "scalars", "columns", "names"),
    *("events", "schemas", "streams", "runs", "projects", "requests", "reads", "live", "changes", "sign-ins"),
    *("extent", "gap", "storage"),
)
"""The names of all limits, as listed in docs/operate.md."""

REGISTRY = CollectorRegistry()

process = ProcessCollector(namespace="ammeter_collector", registry=REGISTRY)
"""CPU, memory, open files and start time of this process. The child process that renders /metrics is not included."""

ingest_requests = Counter(
    "ammeter_collector_ingest_requests", "Batches answered, by HTTP status", ["code"], registry=REGISTRY
)
ingest_values = Counter("ammeter_collector_ingest_values", "Values stored from batches", registry=REGISTRY)
ingest_bytes = Counter("ammeter_collector_ingest_bytes", "Bytes of the batches that were stored", registry=REGISTRY)
ingest_seconds = Histogram(
    "ammeter_collector_ingest_duration_seconds", "Time from a batch's last byte to its commit", registry=REGISTRY
)
limited = Counter("ammeter_collector_limited", "Requests refused by a limit, by its name", ["limit"], registry=REGISTRY)
lost_records = Counter(
    "ammeter_collector_lost_records",
    "Steps and events that runs reported as lost, by reason; 1 for a gap of unknown size",
    ["reason"],
    registry=REGISTRY,
)
deliveries = Counter(
    "ammeter_collector_deliveries", "Attempts to deliver a notification", ["channel", "outcome"], registry=REGISTRY
)
verdict_faults = Counter(
    "ammeter_collector_verdict_faults",
    "Verdicts switched off for a stream by their own fault",
    ["verdict"],
    registry=REGISTRY,
)

for _limit in LIMITS:
    limited.labels(_limit)
for _reason in (*REASONS, OTHER):
    lost_records.labels(_reason)
for _verdict in ALL:
    verdict_faults.labels(_verdict.id)


def count_lost(reason: str, records: int) -> None:
    """Counts lost records of a run.

    Unknown reasons are counted as `_other`, because clients choose them.
    """
    lost_records.labels(reason if reason in REASONS else OTHER).inc(max(1, records))


def count_faults(verdicts: Iterable[str]) -> None:
    """Counts verdicts that were switched off for a stream."""
    for verdict in verdicts:
        verdict_faults.labels(verdict).inc()


def expect_deliveries(channel: str) -> None:
    """Creates the counters of a channel with 0."""
    for outcome in ("sent", "failed"):
        deliveries.labels(channel, outcome)
