"""HTTP server of the collector: uvicorn with timeouts, connection limits and TLS."""

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
"""Maximum seconds for the head of a request. Also for the rest of a body that is no longer needed."""

MAX_HEAD_BYTES = 64 * 1024
"""Maximum buffered bytes of an incomplete request head."""

ANSWER_SECONDS = 300.0
"""Maximum seconds for which a response waits for its client; it stays in memory until then."""

ENDLESS_KEY = "ammeter.endless"
"""Key in the scope of a request whose response never ends. A shutdown does not wait for it."""

MAX_OPEN_FILES = 65_536
CONNECTIONS_PER_FILE = 0.75
"""Share of the process's open files that may be connections; the database and channels need some."""


LINGER_SECONDS = 1.0
"""Seconds between the response to an invalid request and the close of its connection. Input in between is discarded."""

MAX_DISCARDED_BYTES = 4 * 2**20
"""Maximum bytes that are discarded in that time; a client that sends more does not read the response."""

VERSIONS = ("1.0", "1.1")

UNIQUE_FIELDS = (b"host", b"authorization")
"""Header fields that may not repeat: a proxy could use a different one of the two than this server."""


class PatientProtocol(HttpToolsProtocol):
    """HTTP/1.1 with limits on slow and oversized requests.

    It closes a connection if no request arrives within HEAD_SECONDS, if a request head exceeds MAX_HEAD_BYTES, or if a
    response makes no progress for ANSWER_SECONDS.

    uvicorn has no such limits. Single bytes at intervals could keep a connection open, an endless head could fill the
    memory, and so could responses that no client reads. Errors that occur before the application runs are also
    problems.
    """

    _waiting: asyncio.TimerHandle | None = None
    _answering: asyncio.TimerHandle | None = None
    _messages = 0
    _in_head = False
    _in_body = False
    _head_bytes = 0
    _refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_DISCARDED_BYTES:
                self.transport.close()
            return
        messages = self._messages
        super().data_received(data)
        if self._in_head and self._messages == messages:
            self._count_head(len(data))
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._waiting is None:
            self._wait()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._messages += 1
        self._in_head, self._head_bytes = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            raise ValueError("there are fields behind the body")  # the application ignores them, but they use memory
        super().on_header(name, value)
        if self.headers[-1][0] in UNIQUE_FIELDS and sum(name == self.headers[-1][0] for name, _ in self.headers) > 1:
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
        if self.cycle is not None and not self.cycle.response_complete and ENDLESS_KEY in self.cycle.scope:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_answering()
        self._answering = self.loop.call_later(ANSWER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_answering()

    def _count_head(self, size: int) -> None:
        """Counts the buffered bytes of an incomplete request head."""
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES and not self._refused and not self.transport.is_closing():
            part, status = ("fields", 431) if self.headers else ("address", 414)
            self._refuse(status, f"the {part} of the request take more than {MAX_HEAD_BYTES} bytes; send less")

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn while it handles an exception of the parser."""
        error = sys.exc_info()[1]
        reason = str(getattr(error, "__context__", None) or error or msg)
        if "HTTP version" in reason:
            self._refuse(505, "the request has another version of HTTP; use HTTP/1.1")
        else:
            self._refuse(400, f"this is no HTTP request ({reason[:200]}); check its sender, and whether it uses TLS")

    def _refuse(self, status: int, detail: str) -> None:
        """Sends an error response and closes.

        It never writes into the response to an earlier request.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete or (self._in_body and not cycle.response_started):
            response = answer(Problem(status, detail, headers={**HEADERS, "Cache-Control": "no-store"}))
            fields = [*self.server_state.default_headers, *response.raw_headers, (b"connection", b"close")]
            head = STATUS_LINE[status] + b"".join(b"%b: %b\r\n" % field for field in fields)
            self.transport.write(head + b"\r\n" + bytes(response.body))
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Closes after a delay, so that the client can read the response.

        A close with unread input would discard the response.
        """
        self._refused = True
        self._stop_waiting()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        super()._start_asgi_task(cycle, _refuse_connection if app is service_unavailable else app)  # type: ignore[arg-type]

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
            self._refuse(408, f"no complete request arrived within {HEAD_SECONDS:.0f} s; send it at once")


async def _refuse_connection(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuses a connection above the limit."""
    headers = {**HEADERS, "Retry-After": "5", "Connection": "close", "Cache-Control": "no-store"}
    detail = f"there are more than {max_connections()} connections; retry later, and close unused ones"
    await answer(Problem(503, detail, headers=headers))(scope, receive, send)


def config(app: FastAPI, settings: Settings, **more: Any) -> uvicorn.Config:
    """Builds uvicorn's configuration. The caller, which runs the server, opens the port."""
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
        limit_concurrency=max_connections(),
        ssl_certfile=settings.tls_cert or None,
        ssl_keyfile=settings.tls_key or None,
        **{"timeout_graceful_shutdown": 5, **more},
    )


def max_connections() -> int:
    """Maximum number of simultaneous connections; the next one gets 503."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return int((MAX_OPEN_FILES if allowed == resource.RLIM_INFINITY else allowed) * CONNECTIONS_PER_FILE)


def raise_file_limit() -> None:
    """Raises the soft limit of open files, often 1,024, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft not in (resource.RLIM_INFINITY, wanted) and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
