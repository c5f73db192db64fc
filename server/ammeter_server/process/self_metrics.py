"""What this process counts about its own work; /metrics/self shows it.

A series whose labels are known beforehand is there with 0 from the start: what appears with 1 is no increase to
Prometheus, and an alert on the first one would stay silent.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

from ammeter.verdicts import ALL
from ammeter.verdicts.processes.agent_blind import REASONS

OTHER = "_other"

LIMITS = (
    *("body", "held", "slow", "guesses", "items", "said", "unpacked", "tensors", "scalars", "columns", "names"),
    *("events", "schemas", "streams", "runs", "projects", "requests", "reads", "live", "changes", "sign-ins"),
    *("extent", "gap", "storage"),
)
"""By name, as docs/operate.md lists them."""

REGISTRY = CollectorRegistry()

process = ProcessCollector(namespace="ammeter_collector", registry=REGISTRY)
"""CPU, memory, open files and start of this process; scrapes of /metrics are done by another one."""

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
    "Steps and events that runs said are lost, by reason; 1 for a gap of unknown size",
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


def lose(reason: str, records: int) -> None:
    """Counts records of a run that are gone. Whoever sends may say any reason: one that is not known is no label."""
    lost_records.labels(reason if reason in REASONS else OTHER).inc(max(1, records))


def expect_deliveries(channel: str) -> None:
    """Makes the counters of a channel be there."""
    for outcome in ("sent", "failed"):
        deliveries.labels(channel, outcome)
