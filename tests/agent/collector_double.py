"""A collector for tests of the shipper: a real HTTP server that keeps the protocol and misbehaves on request."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ammeter.wire.codec import decode_batch
from ammeter.wire.columns import unpack
from ammeter.wire.frames import Batch, Block, Bye, Event, Frame, Hello, Lost, Schema, Steps


@dataclass
class Request:
    """One POST as it came in."""

    stream: str
    begin: int
    end: int
    batch: Batch
    size: int
    token: str
    time: float


@dataclass
class Reply:
    """What to answer instead of the protocol's answer. drop: store first, then hang up without an answer."""

    status: int = 503
    body: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    drop: bool = False
    hang: threading.Event | None = None
    raw: bytes | None = None


Rule = Callable[[Request], Reply | None]


class CollectorDouble:
    """requests: all that came in. script: replies for the next requests; rules: asked when the script is empty."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.script: deque[Reply] = deque()
        self.rules: list[Rule] = []
        self.offsets: dict[str, int] = {}
        self.items: dict[str, list[Any]] = {}
        self.gaps: dict[str, list[Lost]] = {}
        self.covered: dict[str, list[tuple[int, int]]] = {}
        self.directives: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        self.url = ""

    def handle(self, request: Request) -> Reply:
        with self.lock:
            self.requests.append(request)
            scripted = self.script.popleft() if self.script else self._by_rule(request)
        if scripted and scripted.hang:
            scripted.hang.wait(60)
        if scripted and not scripted.drop:
            return scripted
        with self.lock:
            answered = self._by_protocol(request)
        return Reply(answered.status, answered.body, drop=bool(scripted))

    def _by_rule(self, request: Request) -> Reply | None:
        return next((reply for rule in self.rules if (reply := rule(request))), None)

    def _by_protocol(self, request: Request) -> Reply:
        here = self.offsets.get(request.stream, 0)
        if request.begin == here:
            self.offsets[request.stream] = request.end
            self.items.setdefault(request.stream, []).extend(request.batch.items)
            self.gaps.setdefault(request.stream, []).extend(request.batch.gaps)
            if request.end > request.begin:
                self.covered.setdefault(request.stream, []).append((request.begin, request.end))
        elif request.end > here:
            return Reply(409, {"title": "another offset", "offset": here})
        return Reply(200, {"offset": self.offsets[request.stream], "directives": self.directives})

    def frames(self, stream: str) -> list[Frame]:
        """What was stored of a stream, blocks taken apart again into rows."""
        found: list[Frame] = []
        schema = Schema()
        for item in self.items.get(stream, []):
            if isinstance(item, Block):
                rows = unpack(item, schema)
                values = rows.values.T.tobytes()
                width = 4 * schema.width
                for index in range(item.rows):
                    row = values[index * width : (index + 1) * width]
                    found.append(Steps(int(rows.steps[index]), int(rows.times[index]), row))
            else:
                schema = item.schema if isinstance(item, Hello) else schema
                found.append(item)
        return found

    def has_bye(self, stream: str) -> bool:
        with self.lock:
            return any(isinstance(item, Bye) for item in self.items.get(stream, []))

    def has_event(self, stream: str, step: int) -> bool:
        with self.lock:
            return any(isinstance(item, Event) and item.step == step for item in self.items.get(stream, []))


@contextmanager
def collector_double(port: int = 0) -> Iterator[CollectorDouble]:
    """A collector on a free loopback port, for as long as the block lasts."""
    double = CollectorDouble()
    connections: list[socket.socket] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            connections.append(self.connection)

        def do_POST(self) -> None:
            address = urlsplit(self.path)
            asked = parse_qs(address.query)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            stream = address.path.split("/")[-2]
            token = self.headers.get("Authorization", "")
            begin, end = int(asked["offset"][0]), int(asked["end"][0])
            request = Request(stream, begin, end, decode_batch(body), len(body), token, time.monotonic())
            self._say(double.handle(request))

        def _say(self, reply: Reply) -> None:
            body = reply.raw if reply.raw is not None else json.dumps(reply.body).encode()
            if reply.drop:
                # Half an answer: the other side cannot know whether its data was stored.
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n{")
                self.close_connection = True
                return
            self.send_response(reply.status)
            self.send_header("Content-Type", "application/json")
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Silence: what came in is in requests."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        allow_reuse_address = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that hung up is part of the tests."""

    server = Server(("127.0.0.1", port), Handler)
    double.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield double
    finally:
        server.shutdown()
        server.server_close()
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        thread.join()
