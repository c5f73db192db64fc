"""How the collector listens: uvicorn with what a sender may take its time for, how many at once, and TLS."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ammeter_server.settings import Settings

HEAD_SECONDS = 20.0
"""For a request's head, and for the rest of a body that nobody waits for any more."""

MOST_HEAD = 64 * 1024
"""Bytes that are held of a request's head while it goes on."""

ANSWER_SECONDS = 300.0
"""For an answer that nobody reads; it is held in memory until then."""

ENDLESS = "ammeter.endless"
"""In the scope of a question whose answer goes on by itself: nobody waits for its end when the server stops."""

MOST_FILES = 65_536
SHARE_OF_FILES = 0.75
"""Of the files that the process may open, those that may be connections; the database and channels need some."""


TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class PatientProtocol(HttpToolsProtocol):
    """HTTP/1.1 that closes a connection on which no request comes to be answered within HEAD_SECONDS, whose head has no
    end within MOST_HEAD, or on which an answer makes no way for ANSWER_SECONDS.

    uvicorn itself waits for ever for all of them, so a byte now and then would hold a connection, a head without an end
    all memory, and none an answer.
    """

    _waiting: asyncio.TimerHandle | None = None
    _answering: asyncio.TimerHandle | None = None
    _messages = 0
    _in_head = False
    _in_body = False
    _held = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
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
            raise ValueError("fields behind a body")  # which nobody reads, and which would be held
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
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
        if self._held > MOST_HEAD and not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            self.transport.close()

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
        if self.transport.is_closing() or (self.cycle is not None and not self.cycle.response_complete):
            return
        if not self._in_body:
            self.transport.write(TOO_SLOW)
        self.transport.close()


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
    return int((MOST_FILES if allowed == resource.RLIM_INFINITY else allowed) * SHARE_OF_FILES)


def allow_more_files() -> None:
    """Raises this process's limit of open files, 1,024 on many systems, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft not in (resource.RLIM_INFINITY, wanted) and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
