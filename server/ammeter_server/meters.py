"""What this process counts about its own work; /metrics/self shows it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

REGISTRY = CollectorRegistry()

ingest_requests = Counter(
    "ammeter_collector_ingest_requests", "Batches answered, by HTTP status", ["code"], registry=REGISTRY
)
ingest_values = Counter("ammeter_collector_ingest_values", "Values stored from batches", registry=REGISTRY)
ingest_seconds = Histogram(
    "ammeter_collector_ingest_duration_seconds", "Time from a batch's last byte to its commit", registry=REGISTRY
)
limited = Counter("ammeter_collector_limited", "Requests refused by a limit, by its name", ["limit"], registry=REGISTRY)
deliveries = Counter(
    "ammeter_collector_deliveries", "Attempts to deliver a notification", ["channel", "outcome"], registry=REGISTRY
)
verdict_faults = Counter(
    "ammeter_collector_verdict_faults",
    "Verdicts switched off for a stream by their own fault",
    ["verdict"],
    registry=REGISTRY,
)
