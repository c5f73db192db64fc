"""What is measured, as processes of their own on free loopback ports: the collector, VictoriaMetrics, Prometheus."""

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
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

DEADLINE = 60.0
TICKS = os.sysconf("SC_CLK_TCK")


class MissingError(Exception):
    """Why something cannot be measured here."""


@dataclass
class Part:
    """A server that was started. folder: where all of its data lie."""

    name: str
    port: int
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cpu(self) -> float:
        """Seconds that all of its threads have computed since it was started."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def resident(self) -> int:
        """Bytes of memory."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stored(self) -> int:
        """Bytes of its files, what lies in SQLite's log taken in."""
        for database in self.folder.glob("*.db"):
            with closing(sqlite3.connect(database, timeout=DEADLINE)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return sum(each.stat().st_size for each in self.folder.rglob("*") if each.is_file())

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=DEADLINE) as answer:
            return bytes(answer.read())

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Line:
    """A connection that stays open, and says what was wrong with an answer."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection = self._connected()

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        self._connection.request("POST", path, body, headers)
        return self._answer(path)

    def get(self, path: str, accept: str = "*/*") -> bytes:
        self._connection.request("GET", path, headers={"Accept": accept})
        return self._answer(path)

    def follow(self, path: str) -> Iterator[bytes]:
        """The data of server-sent events as they come; nothing where somebody only says that he is there."""
        self._connection.request("GET", path, headers={"Accept": "text/event-stream"})
        answer = self._connection.getresponse()
        if answer.status >= 300:
            raise RuntimeError(f"{path} was answered {answer.status}: {answer.read(300).decode(errors='replace')}")
        while line := answer.readline():
            if line.startswith((b"data: ", b":")):
                yield line.removeprefix(b"data: ").strip(b":\n")

    def reset(self) -> None:
        """Begins anew with the next request."""
        self._connection.close()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def _answer(self, path: str) -> bytes:
        answer = self._connection.getresponse()
        said = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{path} was answered {answer.status}: {said[:300].decode(errors='replace')}")
        return said

    def _connected(self) -> HTTPConnection:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=DEADLINE)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def collector(folder: Path, database: str = "") -> Part:
    """The collector as `ammeter-server serve` starts it, over an empty SQLite file or another database."""
    port = free_port()
    url = database or f"sqlite:///{folder / 'data' / 'collector.db'}"
    words = ["-m", "ammeter_server", "serve", "--port", str(port), "--database-url", url]
    return _started("ammeter", [sys.executable, *words], port, folder, "/readyz")


def victoria(folder: Path) -> Part:
    port = free_port()
    words = [f"-httpListenAddr=127.0.0.1:{port}", f"-storageDataPath={folder / 'data'}", "-retentionPeriod=10y"]
    return _started("victoria-metrics", [_program("victoria-metrics"), *words], port, folder, "/health")


def prometheus(folder: Path) -> Part:
    port = free_port()
    settings = folder / "prometheus.yml"
    settings.write_text("global: {scrape_interval: 1h}\n")
    words = [f"--config.file={settings}", f"--web.listen-address=127.0.0.1:{port}"]
    words += ["--web.enable-remote-write-receiver", f"--storage.tsdb.path={folder / 'data'}"]
    return _started("prometheus", [_program("prometheus"), *words], port, folder, "/-/ready")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise MissingError(f"there is no {name} on this machine; on Debian: apt-get install {name}")
    return found


def _started(name: str, command: list[str], port: int, folder: Path, ready: str) -> Part:
    (folder / "data").mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AMMETER_")}
    with log.open("ab") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, stdin=subprocess.DEVNULL, env=environment)
    part = Part(name, port, folder / "data", process)
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline and process.poll() is None:
        try:
            part.get(ready)
        except OSError:
            time.sleep(0.05)
        else:
            return part
    if process.poll() is None:
        part.stop()
    raise MissingError(f"{name} did not start: {log.read_text(errors='replace')[-500:]}")
