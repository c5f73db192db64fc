"""The measured servers as processes on free loopback ports: the collector, VictoriaMetrics, Prometheus."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

TIMEOUT_SECONDS = 60.0
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class MissingError(Exception):
    """A server or package that this machine lacks."""


@dataclass
class Server:
    """A running server. folder: the folder of all its data."""

    name: str
    port: int
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cpu_seconds(self) -> float:
        """CPU time of all its threads since its start."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stored_bytes(self) -> int:
        """Bytes of its files, after a checkpoint of SQLite's log."""
        for database in self.folder.glob("*.db"):
            with closing(sqlite3.connect(database, timeout=TIMEOUT_SECONDS)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=TIMEOUT_SECONDS) as response:
            return bytes(response.read())

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Connection:
    """An HTTP connection that stays open. Raises RuntimeError for a response with an error status."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection = self._open()

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        self._connection.request("POST", path, body, headers)
        return self._response(path)

    def get(self, path: str, accept: str = "*/*") -> bytes:
        self._connection.request("GET", path, headers={"Accept": accept})
        return self._response(path)

    def follow(self, path: str) -> Iterator[bytes]:
        """The data of server-sent events as they arrive; b"" for a keep-alive comment."""
        self._connection.request("GET", path, headers={"Accept": "text/event-stream"})
        response = self._connection.getresponse()
        if response.status >= 300:
            raise RuntimeError(f"{path} returned {response.status}: {response.read(300).decode(errors='replace')}")
        while line := response.readline():
            if line.startswith((b"data: ", b":")):
                yield line.removeprefix(b"data: ").strip(b":\n")

    def reset(self) -> None:
        """Closes the connection; the next request opens a new one."""
        self._connection.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def _response(self, path: str) -> bytes:
        response = self._connection.getresponse()
        body = response.read()
        if response.status >= 300:
            raise RuntimeError(f"{path} returned {response.status}: {body[:300].decode(errors='replace')}")
        return body

    def _open(self) -> HTTPConnection:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_SECONDS)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def collector(folder: Path, database: str = "", environment: Mapping[str, str] | None = None) -> Server:
    """Starts `ammeter-server serve` on an empty SQLite file or another database.

    Args:
        environment: All variables of the process; by default ours without AMMETER_ settings.
    """
    port = free_port()
    url = database or f"sqlite:///{folder / 'data' / 'collector.db'}"
    arguments = ["-m", "ammeter_server", "serve", "--port", str(port), "--database-url", url]
    return _start("ammeter", [sys.executable, *arguments], port, folder, "/readyz", environment)


def victoria(folder: Path) -> Server:
    port = free_port()
    arguments = [f"-httpListenAddr=127.0.0.1:{port}", f"-storageDataPath={folder / 'data'}", "-retentionPeriod=10y"]
    return _start("victoria-metrics", [_program_path("victoria-metrics"), *arguments], port, folder, "/health")


def prometheus(folder: Path) -> Server:
    port = free_port()
    settings = folder / "prometheus.yml"
    settings.write_text("global: {scrape_interval: 1h}\n")
    arguments = [f"--config.file={settings}", f"--web.listen-address=127.0.0.1:{port}"]
    arguments += ["--web.enable-remote-write-receiver", f"--storage.tsdb.path={folder / 'data'}"]
    return _start("prometheus", [_program_path("prometheus"), *arguments], port, folder, "/-/ready")


def _own_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("AMMETER_")}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _program_path(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise MissingError(f"there is no {name} on this machine; on Debian: apt-get install {name}")
    return found


def _start(
    name: str, command: list[str], port: int, folder: Path, ready: str, environment: Mapping[str, str] | None = None
) -> Server:
    (folder / "data").mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment or _own_environment()
        )
    server = Server(name, port, folder / "data", process)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            server.get(ready)
        except OSError:
            time.sleep(0.05)
        else:
            return server
    if process.poll() is None:
        server.stop()
    raise MissingError(f"{name} did not start: {log.read_text(errors='replace')[-500:]}")
