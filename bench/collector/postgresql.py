"""Servers of PostgreSQL for one measurement, alone or as a cluster of Citus, on free loopback ports."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from bench.collector.servers import TICKS_PER_SECOND, TIMEOUT_SECONDS, MissingError, free_port

OF_CITUS = {"shared_preload_libraries": "citus", "wal_level": "logical", "citus.node_conninfo": "sslmode=disable"}
SHARDS = 8


@dataclass(frozen=True)
class Node:
    """A running server."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"postgresql://ammeter@127.0.0.1:{self.port}/postgres?sslmode=disable"

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode())

    def cpu_seconds(self) -> float:
        """CPU time of the server, of its processes, and of those that have ended."""
        first = self.process.pid
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return sum(_cpu_seconds(pid) for pid in (first, *map(int, children)))


@dataclass(frozen=True)
class Database:
    """url: for the collector. nodes: all servers of PostgreSQL."""

    url: str
    nodes: Sequence[Node]

    def cpu_seconds(self) -> float:
        return sum(node.cpu_seconds() for node in self.nodes)


@contextmanager
def server(**settings: str) -> Iterator[Node]:
    """Runs an empty server with default settings."""
    programs = programs_folder()
    folder = Path(tempfile.mkdtemp(prefix="ammeter-bench-"))
    owner: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(folder, "postgres")
        owner = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    command = [*owner, str(programs / "initdb"), "-D", str(folder / "data"), "-A", "trust", "-U", "ammeter"]
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, timeout=TIMEOUT_SECONDS)
    port = free_port()
    fixed = {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "unix_socket_directories": "",
        "max_connections": "300",
    }
    words = [word for name, value in (fixed | settings).items() for word in ("-c", f"{name}={value}")]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [*owner, str(programs / "postgres"), "-D", str(folder / "data"), *words], cwd=folder, stdout=log, stderr=log
        )
    node = Node(port, process)
    try:
        _wait(node, folder / "log")
        yield node
    finally:
        process.send_signal(signal.SIGQUIT)
        process.wait(TIMEOUT_SECONDS)
        shutil.rmtree(folder)


@contextmanager
def citus_cluster(workers: int) -> Iterator[list[Node]]:
    """Runs a coordinator, the first of the nodes, and workers."""
    if not (programs_folder().parent / "lib" / "citus.so").exists():
        raise MissingError("PostgreSQL has no extension Citus; build it from source, as no package of Debian has it")
    with ExitStack() as stack:
        settings = {**OF_CITUS, "max_prepared_transactions": "300", "citus.shard_count": str(SHARDS)}
        nodes = [stack.enter_context(server(**settings)) for _ in range(1 + workers)]
        for node in nodes:
            node.execute("CREATE EXTENSION citus")
        nodes[0].execute(f"SELECT citus_set_coordinator_host('127.0.0.1', {nodes[0].port})")
        for node in nodes[1:]:
            nodes[0].execute(f"SELECT citus_add_node('127.0.0.1', {node.port})")
        yield nodes


def programs_folder() -> Path:
    """The folder of the newest installed PostgreSQL's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        raise MissingError("PostgreSQL is not installed; on Debian: apt-get install postgresql")
    return found[-1].parent


def _wait(node: Node, log: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            psycopg.connect(node.url).close()
        except psycopg.OperationalError:
            if node.process.poll() is not None or time.monotonic() > deadline:
                raise MissingError(f"PostgreSQL did not start: {log.read_text()[-500:]}") from None
            time.sleep(0.05)
        else:
            return


def _cpu_seconds(pid: int) -> float:
    """CPU time of a process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / TICKS_PER_SECOND
