"""How the collector listens: uvicorn with what a sender may take its time for, how many at once, and TLS."""

from __future__ import annotations

import asyncio
import resource
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from ammeter_server.config.settings import Settings
from ammeter_server.http.problems import Problem, answer
from ammeter_server.http.security_headers import HEADERS

HEAD_SECONDS = 20.0
"""For a request's head, and for the rest of a body that nobody waits for any more."""

MAX_HEAD_BYTES = 64 * 1024
"""Bytes that are held of a request's head while it goes on."""

ANSWER_SECONDS = 300.0
"""For an answer that nobody reads; it is held in memory until then."""

ENDLESS = "ammeter.endless"
"""In the scope of a question whose answer goes on by itself: nobody waits for its end when the server stops."""

MAX_OPEN_FILES = 65_536
SHARE_OF_FILES = 0.75
"""Of the files that the process may open, those that may be connections; the database and channels need some."""


LINGER_SECONDS = 1.0
"""From the answer to what was no request until its connection is closed, while whatever else comes is thrown away."""

MAX_DISCARDED_BYTES = 4 * 2**20
"""Bytes that come meanwhile; who sends more is not about to read."""

VERSIONS = ("1.0", "1.1")

ONCE = (b"host", b"authorization")
"""Fields of which a second one would mean something else to us than to a proxy before us."""


class PatientProtocol(HttpToolsProtocol):
    """HTTP/1.1 that closes a connection on which no request comes to be answered within HEAD_SECONDS, whose head has no
    end within MAX_HEAD_BYTES, or on which an answer makes no way for ANSWER_SECONDS.

    uvicorn itself waits for ever for all of them, so a byte now and then would hold a connection, a head without an end
    all memory, and none an answer. What is answered before the application hears of it is a problem as well.
    """

    _waiting: asyncio.TimerHandle | None = None
    _answering: asyncio.TimerHandle | None = None
    _messages = 0
    _in_head = False
    _in_body = False
    _held = 0
    _refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._held += len(data)
            if self._held > MAX_DISCARDED_BYTES:
                self.transport.close()
            return
        messages = self._messages
        super().data_received(data)
        if self._in_head and self._messages == messages:
            self._hold(len(data))
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._waiting is None:
            self._wait()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._messages += 1
        self._in_head, self._held = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            raise ValueError("there are fields behind the body")  # which nobody reads, and which would be held
        super().on_header(name, value)
        if self.headers[-1][0] in ONCE and sum(each == self.headers[-1][0] for each, _ in self.headers) > 1:
            raise ValueError(f"there is more than one field {self.headers[-1][0].decode()}")

    def on_headers_complete(self) -> None:
        version = self.parser.get_http_version()
        if version not in VERSIONS:
            raise ValueError("Invalid HTTP version")
        if version == "1.1" and not any(name == b"host" for name, _ in self.headers):
            raise ValueError("there is no field Host")
        self._in_head, self._in_body = False, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_answering()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        super().shutdown()
        if self.cycle is not None and not self.cycle.response_complete and ENDLESS in self.cycle.scope:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_answering()
        self._answering = self.loop.call_later(ANSWER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_answering()

    def _hold(self, size: int) -> None:
        """Counts what is held of a head that goes on."""
        self._held += size
        if self._held > MAX_HEAD_BYTES and not self._refused and not self.transport.is_closing():
            what, status = ("fields", 431) if self.headers else ("address", 414)
            self._refuse(status, f"the {what} of the request take more than {MAX_HEAD_BYTES} bytes; send less")

    def send_400_response(self, msg: str) -> None:
        """Called where the parser has raised, with that error at hand."""
        error = sys.exc_info()[1]
        reason = str(getattr(error, "__context__", None) or error or msg)
        if "HTTP version" in reason:
            self._refuse(505, "the request is of another version of HTTP; use HTTP/1.1")
        else:
            self._refuse(400, f"this is no HTTP request ({reason[:200]}); see what sent it, and whether it speaks TLS")

    def _refuse(self, status: int, detail: str) -> None:
        """Answers and closes. Nothing is said into the answer to an earlier request."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or (self._in_body and not cycle.response_started):
            said = answer(Problem(status, detail, headers={**HEADERS, "Cache-Control": "no-store"}))
            fields = [*self.server_state.default_headers, *said.raw_headers, (b"connection", b"close")]
            head = STATUS_LINE[status] + b"".join(b"%b: %b\r\n" % field for field in fields)
            self.transport.write(head + b"\r\n" + bytes(said.body))
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Closes once the other end has had time to read: closing with data unread would take the answer back."""
        self._refused = True
        self._stop_waiting()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        super()._start_asgi_task(cycle, _crowded if app is service_unavailable else app)  # type: ignore[arg-type]

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _stop_answering(self) -> None:
        if self._answering is not None:
            self._answering.cancel()
            self._answering = None

    def _give_up(self) -> None:
        if (
            self._refused
            or self.transport.is_closing()
            or (self.cycle is not None and not self.cycle.response_complete)
        ):
            return
        if self._in_body:
            self.transport.close()
        else:
            self._refuse(408, f"no whole request came within {HEAD_SECONDS:.0f} s; send it at once")


async def _crowded(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers one connection more than there may be."""
    headers = {**HEADERS, "Retry-After": "5", "Connection": "close", "Cache-Control": "no-store"}
    said = f"there are more than {most_connections()} connections; ask again, and close those that you do not use"
    await answer(Problem(503, said, headers=headers))(scope, receive, send)


def config(app: FastAPI, settings: Settings, **more: Any) -> uvicorn.Config:
    """What uvicorn has to know. The port is opened by whoever runs the server."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=PatientProtocol,
        loop="asyncio",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        limit_concurrency=most_connections(),
        ssl_certfile=settings.tls_cert or None,
        ssl_keyfile=settings.tls_key or None,
        **{"timeout_graceful_shutdown": 5, **more},
    )


def most_connections() -> int:
    """How many connections there may be at once; one more is answered 503."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return int((MAX_OPEN_FILES if allowed == resource.RLIM_INFINITY else allowed) * SHARE_OF_FILES)


def allow_more_files() -> None:
    """Raises this process's limit of open files, 1,024 on many systems, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft not in (resource.RLIM_INFINITY, wanted) and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
