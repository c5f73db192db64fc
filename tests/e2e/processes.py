"""Real parts as processes: a collector, a notification receiver, and a breakable connection between them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ammeter import journal
from ammeter.wire import codec, columns, frames
from tests import forked
from tests.e2e import stored

DEADLINE = 60.0

SERVE_WITH_CONSTANTS = """
import importlib, json, sys
for name, value in json.loads(sys.argv.pop(1)).items():
    module, _, constant = name.rpartition(".")
    assert hasattr(importlib.import_module(module), constant), name
    setattr(sys.modules[module], constant, value)
from ammeter_server.__main__ import main
sys.exit(main())
"""
"""`ammeter-server` with other values of constants. Arguments: {"MODULE.CONSTANT": value} in JSON, then its own."""


class Collector:
    """A real `ammeter-server serve` on a free port, with SQLite unless a database is given."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        token: str | None = None,
        database_url: str = "",
        fork: bool = True,
        constants: Mapping[str, float] | None = None,
    ) -> None:
        """fork: False starts a new interpreter, for tests that kill collectors and start them again all the time.

        constants: shorter intervals, for tests that would only wait for them.
        """
        self.database = folder / "collector.db"
        self.database_url = database_url or f"sqlite:///{self.database}"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.token = token
        self._words = words
        self._program = ["-c", SERVE_WITH_CONSTANTS, json.dumps(constants)] if constants else ["-m", "ammeter_server"]
        self._fork = fork
        self._log = folder / "collector.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Collector:
        command = [sys.executable, *self._program, "serve", "--port", str(self.port)]
        command += ["--database-url", self.database_url, *self._words]
        with self._log.open("ab") as log:
            if self._fork:
                self._process = forked.Popen(
                    command, imports=forked.COLLECTOR, stdout=log, stderr=log, stdin=subprocess.DEVNULL
                )
            else:
                self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_for(lambda: self._answers(), "the collector is ready", self.log)
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def freeze(self) -> None:
        """Stops it like a machine that swaps or a disk that hangs: alive, but inactive."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def ask(self, path: str) -> Any:
        """Returns JSON of the read API."""
        request = urllib.request.Request(self.url + path)
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def log(self, most: int = 3000) -> str:
        return self._log.read_text()[-most:]

    def where(self) -> str:
        """Returns the stacks of its threads, and the sessions of the database."""
        assert self._process is not None
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(1.0)
        with stored.opened(self.database_url) as database:
            return f"{self.log(8000)}\n{stored.sessions(database)}"

    def rows(self, run: str) -> stored.Rows:
        """stream -> (step, the bits of its row) of every stored row, including duplicates."""
        with stored.opened(self.database_url) as database:
            return stored.rows(database, run)

    def events(self, run: str) -> list[tuple[str, int]]:
        with stored.opened(self.database_url) as database:
            found = stored.events(database, run)
        return [(name, step) for stream in sorted(found) for _, name, step, *_ in found[stream]]

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"it has ended with {self._process.returncode}; its log: {self.log()}"
        try:
            with urllib.request.urlopen(self.url + "/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class Receiver:
    """Stands in for a pager: an HTTP server that records notifications and their times."""

    def __init__(self) -> None:
        self.received: list[tuple[float, dict[str, Any]]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.received.append((time.time(), json.loads(body)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.apprise = f"json://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Proxy:
    """A breakable connection to a collector.

    state: 'open' forwards, a number answers that status, 'hang' answers nothing.
    """

    def __init__(self, collector: Collector) -> None:
        self.state: str | int = "open"
        self.refuse: Callable[[frames.Batch], int | None] = lambda batch: None
        self.seen: list[str | int] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                proxy.seen.append(proxy.state)
                item = proxy.refuse(codec.decode_batch(body))
                if proxy.state == "hang":
                    time.sleep(3)
                    self.close_connection = True
                elif isinstance(proxy.state, int):
                    self._answer(proxy.state, {"title": "the proxy is broken"})
                elif item is not None:
                    self._answer(422, {"title": "poison", "detail": "poison", "item": item})
                else:
                    self._forward(body)

            def _forward(self, body: bytes) -> None:
                request = urllib.request.Request(collector.url + self.path, body, dict(self.headers))
                try:
                    with urllib.request.urlopen(request, timeout=20) as answer:
                        self._answer(answer.status, json.load(answer))
                except urllib.error.HTTPError as error:
                    with error:
                        self._answer(error.code, json.load(error))
                except OSError:
                    self._answer(502, {"title": "nobody answers"})

            def _answer(self, status: int, content: Any) -> None:
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def stop(self) -> None:
        self.state = 500
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def wait_for(
    condition: Callable[[], Any], what: str, explain: Callable[[], str] = str, seconds: float = DEADLINE
) -> Any:
    """Waits until the condition holds and returns its value; fails with a description on timeout."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s until {what}. {explain()}"
        time.sleep(0.05)


def slowness() -> float:
    """Returns how many times longer work takes than on an idle machine: runnable processes per core, at least 1."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rows_of(folder: Path) -> list[tuple[int, bytes]]:
    """Returns (step, the bits of its row) of every row in a journal."""
    found: list[tuple[int, bytes]] = []
    schema = frames.Schema()
    for entry in journal.read(folder):
        if isinstance(entry.frame, frames.Hello):
            schema = entry.frame.schema
        elif isinstance(entry.frame, frames.Steps):
            found.extend(stored.bits(columns.view(schema, [entry.frame])))
    return found
