"""A coordinator and two workers of Citus on free loopback ports."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.server.databases import PostgreSQL, folder_of_its_own

WORKERS = 2
SHARDS = 4
"""Shards of a table; Citus' default of 32 makes 128 tables of each partitioned table in a test."""

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "shared_preload_libraries": "citus",
    "wal_level": "logical",
    "max_connections": "200",
    "max_prepared_transactions": "200",
    "fsync": "off",
    "citus.node_conninfo": "sslmode=disable",
    "citus.shard_count": str(SHARDS),
}


@dataclass
class Cluster:
    """A running cluster. url: the database of the coordinator."""

    coordinator: PostgreSQL
    workers: list[PostgreSQL]

    @property
    def url(self) -> str:
        return self.coordinator.url


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Yields a cluster whose database has the extension and no tables.

    Skips the test where Citus is not installed, under CI=true as well: no package of Debian has it.
    """
    with ExitStack() as stack:
        ports = [_free_port() for _ in range(1 + WORKERS)]
        servers = [_started(stack, port) for port in ports]
        for server in servers:
            server.execute("CREATE EXTENSION citus")
        coordinator, *workers = servers
        coordinator.execute(f"SELECT citus_set_coordinator_host('127.0.0.1', {ports[0]})")
        for port in ports[1:]:
            coordinator.execute(f"SELECT citus_add_node('127.0.0.1', {port})")
        yield Cluster(coordinator, workers)


def _started(stack: ExitStack, port: int) -> PostgreSQL:
    folder = stack.enter_context(folder_of_its_own())
    if not has_citus():
        pytest.skip(
            "the extension Citus is not installed, and no package of Debian has it; build it from source to run this"
        )
    server = PostgreSQL(folder, None, port=str(port), **SETTINGS)
    stack.callback(server.stop)
    server.start(with_worker=True)
    return server


def has_citus() -> bool:
    """Whether the newest installed PostgreSQL has the extension."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return bool(installed) and (installed[-1].parent.parent / "lib" / "citus.so").exists()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
