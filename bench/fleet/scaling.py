"""Computes what a fleet needs, what is used up first, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ammeter.shipper.stream import FLUSH_ROWS, FLUSH_SECONDS, HEARTBEAT_SECONDS
from ammeter_server.api.live import MAX_FOLLOWERS
from ammeter_server.ingest.writer_queue import MAX_GROUP_BATCHES
from bench.fleet.costs import Costs

DAY = 86_400
Shares = dict[str, float]


@dataclass(frozen=True)
class Fleet:
    """The ranks that send.

    batch_seconds is the batching interval of the shipper, share_read the share of the columns that a step has values
    of, by sampling, and keep_days the retention.
    """

    ranks: int = 10_000
    columns: int = 1_200
    steps_per_second: float = 1.0
    batch_seconds: float = FLUSH_SECONDS
    share_read: float = 1.0
    keep_days: float = 30.0
    ranks_per_run: float = 8.0
    ranks_per_page: float = 100.0


@dataclass(frozen=True)
class Assumptions:
    """What is not measured: limits of one machine, and prices of a core and of a GB for a month.

    busy_share is the share of its core that a collector uses at most. A disk of the single collector with SQLite, and
    one of a PostgreSQL server, has a size, MB written a second and commits a second. PostgreSQL has database_cores
    for each collector, and database_memory_gb for each of these cores.
    """

    busy_share: float = 0.75
    collector_memory_gb: float = 4.0
    collector_network_mb: float = 125.0
    sqlite_disk_gb: float = 2_000.0
    sqlite_disk_mb: float = 200.0
    sqlite_commits: float = 500.0
    scrape_timeout_seconds: float = 15.0
    database_disk_gb: float = 16_000.0
    database_disk_mb: float = 1_000.0
    database_commits: float = 10_000.0
    database_cores: float = 1.0
    database_memory_gb: float = 4.0
    core_price: float = 25.0
    memory_price: float = 3.0
    disk_price: float = 0.1


@dataclass(frozen=True)
class Need:
    """What a fleet needs. MB and commits are those of a second, disk_gb those of a day."""

    steps_per_request: float
    requests: float
    values: float
    ingest_cores: float
    compaction_cores: float
    page_cores: float
    cores: float
    memory_gb: float
    received_mb: float
    disk_gb: float
    kept_gb: float
    written_mb: float
    sqlite_commits: float
    open_pages: float
    scrape_seconds: float
    scrape_mb: float


@dataclass(frozen=True)
class Deployment:
    """The machines for a fleet, and their price for a month. nodes: servers of PostgreSQL, 0 for SQLite."""

    collectors: int
    nodes: int
    price: float

    @property
    def database(self) -> str:
        return ("SQLite", "PostgreSQL")[self.nodes] if self.nodes < 2 else f"Citus, {self.nodes} nodes"


def need(fleet: Fleet, costs: Costs) -> Need:
    steps = min(FLUSH_ROWS, max(1.0, fleet.steps_per_second * fleet.batch_seconds))
    requests = fleet.ranks * max(fleet.steps_per_second / steps, 1 / max(HEARTBEAT_SECONDS, fleet.batch_seconds))
    values = fleet.ranks * fleet.columns * fleet.share_read * fleet.steps_per_second
    pages, runs = fleet.ranks / fleet.ranks_per_page, fleet.ranks / fleet.ranks_per_run
    ingest, compaction = (
        costs.request_seconds * requests + costs.value_seconds * values,
        costs.compaction_seconds * values,
    )
    reading = costs.page_seconds * pages / fleet.batch_seconds
    point = costs.nearest(steps).median
    stored = values * max(measured.median.stored / measured.median.values for measured in costs.points)
    return Need(
        steps,
        requests,
        values,
        ingest,
        compaction,
        reading,
        cores=costs.live_factor * (ingest + compaction + reading),
        memory_gb=costs.stream_mb * fleet.ranks / 1000,
        received_mb=values * point.sent / point.values / 1e6,
        disk_gb=DAY * stored / 1e9,
        kept_gb=DAY * fleet.keep_days * stored / 1e9,
        written_mb=2 * (values * point.came / point.values + stored) / 1e6,
        sqlite_commits=requests / MAX_GROUP_BATCHES,
        open_pages=pages,
        scrape_seconds=costs.scrape_seconds * runs,
        scrape_mb=costs.scrape_mb * runs,
    )


def divisible(need: Need, limits: Assumptions) -> Shares:
    """Shares of one collector, for what several collectors divide among them."""
    return {
        "CPU": need.cores / limits.busy_share,
        "memory": need.memory_gb / limits.collector_memory_gb,
        "network": need.received_mb / limits.collector_network_mb,
        "open pages": need.open_pages / MAX_FOLLOWERS,
    }


def single(need: Need, limits: Assumptions) -> Shares:
    """Shares of everything that one collector with SQLite has."""
    return divisible(need, limits) | {
        "disk space": need.kept_gb / limits.sqlite_disk_gb,
        "disk writes": need.written_mb / limits.sqlite_disk_mb,
        "commits": need.sqlite_commits / limits.sqlite_commits,
        "scrape": need.scrape_seconds / limits.scrape_timeout_seconds,
    }


def database(need: Need, limits: Assumptions) -> Shares:
    """Shares of one PostgreSQL server, which commits each batch by itself."""
    return {
        "disk space": need.kept_gb / limits.database_disk_gb,
        "disk writes": need.written_mb / limits.database_disk_mb,
        "commits": need.requests / limits.database_commits,
    }


def bottleneck(shares: Shares) -> tuple[str, float]:
    """The resource that is used up first when everything grows alike, and its share."""
    return max(shares.items(), key=lambda item: item[1])


def deployment(need: Need, limits: Assumptions) -> Deployment:
    alone = bottleneck(single(need, limits))[1] <= 1
    collectors = 1 if alone else max(2, ceil(bottleneck(divisible(need, limits))[1]))
    nodes = 0 if alone else ceil(bottleneck(database(need, limits))[1])
    database_cores = 0.0 if alone else collectors * limits.database_cores
    memory = collectors * limits.collector_memory_gb + database_cores * limits.database_memory_gb
    machines = (collectors + database_cores) * limits.core_price + memory * limits.memory_price
    return Deployment(collectors, nodes, machines + need.kept_gb * limits.disk_price)
