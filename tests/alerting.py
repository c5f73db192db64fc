"""Real Prometheus, Alertmanager and notification receiver, as processes and a web server on loopback."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from tests.parts import need

ALERTS = Path(__file__).parent.parent / "alerts"
CONFIGURATION = ALERTS / "alertmanager.yaml"

SOONER = MappingProxyType({"group_interval: 1m": "group_interval: 2s"})
"""Replaces shipped settings, so that no test waits a minute for a group's second notification."""


@dataclass
class Notification:
    """One notification. group: the labels that its alerts share."""

    at: float
    path: str
    body: dict[str, Any]

    @property
    def status(self) -> str:
        return str(self.body["status"])

    @property
    def alerts(self) -> list[dict[str, Any]]:
        return list(self.body["alerts"])

    @property
    def group(self) -> dict[str, str]:
        return dict(self.body["groupLabels"])


@dataclass
class Pager:
    """Receives webhooks of an Alertmanager and records them."""

    port: int = 0
    notifications: list[Notification] = field(default_factory=list)

    def of(self, alert: str) -> list[Notification]:
        """Returns the notifications of the alert with this name."""
        return [notification for notification in self.notifications if notification.group.get("alertname") == alert]


@contextmanager
def pager() -> Iterator[Pager]:
    receiver = Pager()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.notifications.append(Notification(time.time(), self.path, json.loads(body)))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Alertmanager:
    """A real Alertmanager with the shipped configuration, except that it notifies this pager.

    other: texts of the configuration -> their replacements.
    """

    def __init__(self, folder: Path, pager: Pager, other: Mapping[str, str] = SOONER) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        shipped = CONFIGURATION.read_text()
        assert 3 == shipped.count("http://127.0.0.1:9099/")
        (folder / "alertmanager.yaml").write_text(replaced(shipped, {":9099/": f":{pager.port}/", **other}))

    def start(self) -> Self:
        command = [need("prometheus-alertmanager", "alertmanager"), f"--config.file={self._folder}/alertmanager.yaml"]
        command += [f"--storage.path={self._folder}/data", f"--web.listen-address=127.0.0.1:{self.port}"]
        command += ["--cluster.listen-address=", "--log.level=warn"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        until(lambda: self._ready(), "Alertmanager is ready")
        return self

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()  # it saves its notification log
            self._process.wait(20)
            self._process = None

    def alerts(self) -> list[dict[str, Any]]:
        """Returns the firing alerts."""
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return found

    def flushes(self) -> int:
        """Returns how often a group was due since the start, whether or not a notification was sent."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            (count,) = re.findall(r"^alertmanager_nflog_queries_total (\S+)$", answer.read().decode(), re.MULTILINE)
        return int(float(count))

    def _ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()[-2000:]
        return answers(f"{self.url}/-/ready")


class Prometheus:
    """A real Prometheus with this configuration and rule file. words: extra command line arguments."""

    def __init__(self, folder: Path, configuration: str, rules: str = "", *words: str) -> None:
        folder.mkdir()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.data = folder / "data"
        self._folder = folder
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "ammeter.rules.yaml").write_text(rules)
        self.configure(configuration)

    def start(self) -> Self:
        words = [f"--config.file={self._folder / 'prometheus.yml'}", f"--storage.tsdb.path={self.data}"]
        command = [need("prometheus"), *words, *self._words, f"--web.listen-address=127.0.0.1:{self.port}"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        until(self._ready, "Prometheus is ready")
        return self

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)
            self._process = None

    def configure(self, configuration: str) -> None:
        """Sets the configuration for the next start, or reload it if running."""
        (self._folder / "prometheus.yml").write_text(configuration)
        if self._process is not None:
            self._process.send_signal(signal.SIGHUP)

    def ask(self, query: str) -> list[Any]:
        """Returns the result of a query."""
        parameters = urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{parameters}", timeout=10) as answer:
            return list(json.load(answer)["data"]["result"])

    def wait(self, query: str, value: float | None) -> None:
        """Waits until a query has this single value, or no result."""
        wanted = [] if value is None else [value]
        until(
            lambda: [float(series["value"][1]) for series in self.ask(query)] == wanted,
            f"{query} is {value}",
            explain=lambda: f"It is {self.ask(query)}. {self.log()}",
        )

    def firing(self) -> dict[str, int]:
        """Alert's name -> number of firing alerts."""
        found = self.ask('count by (alertname) (ALERTS{alertstate="firing"})')
        return {series["metric"]["alertname"]: int(series["value"][1]) for series in found}

    def log(self) -> str:
        return (self._folder / "log").read_text()[-1000:]

    def _ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log()
        return answers(f"{self.url}/-/ready")


def shipped(scraped: int, alertmanager: int, every: str = "1s") -> str:
    """Returns the shipped configuration of Prometheus with these ports and scrape interval.

    The interval also applies to evaluations.
    """
    other = {":8480": f":{scraped}", ":9093": f":{alertmanager}"}
    other |= {f"{word}: 15s": f"{word}: {every}" for word in ("interval", "timeout")}
    return replaced((ALERTS / "prometheus.yaml").read_text(), other)


def replaced(text: str, other: Mapping[str, str]) -> str:
    """Replaces words of the text. Fails if the text lacks one."""
    for old, new in other.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


@contextmanager
def alertmanager(folder: Path, other: Mapping[str, str] = SOONER) -> Iterator[tuple[Alertmanager, Pager]]:
    """A running Alertmanager with the pager that it notifies."""
    with pager() as receiver:
        running = Alertmanager(folder, receiver, other).start()
        try:
            yield running, receiver
        finally:
            running.stop()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def until(condition: Callable[[], Any], what: str, seconds: float = 60.0, explain: Callable[[], Any] = str) -> Any:
    """Waits for a condition and returns its value. Fails after the timeout."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s until {what}. {explain()}"
        time.sleep(0.05)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
