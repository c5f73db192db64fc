"""Sends requests to the collector and reads the answers; the agent's only HTTP code."""

from __future__ import annotations

import http.client
import io
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from ammeter.shipper.answers import Answer, decode_answer
from ammeter.wire.codec import encode_batch
from ammeter.wire.frames import CONTENT_TYPE, Batch

LogState = Callable[[str, str, str], None]
"""(subject, state, line): writes the line to the log if the state of the subject has changed."""

MAX_ANSWER_BYTES = 2**20
"""Limit of what is read of an answer. A collector answers in a few hundred bytes; any other server may send more."""

SEND_SECONDS = 30.0
"""Time limit for sending a whole request. A server that accepts one byte now and then would otherwise block a stream
for an unlimited time."""

SEND_BYTES = 2**16
"""Size of the pieces in which a request is sent."""

_ERROR_NUMBER = re.compile(r"^\[Errno -?\d+\] ")


class Collector:
    """The connection to one collector, shared by all streams and threads of a shipper.

    connect_seconds, read_seconds: time limits for a connection and for a whole answer. recoveries: how often the
    collector became reachable again, after which waiting streams retry at once. accepted_at: time.monotonic() of the
    last accepted batch.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        log_state: LogState,
        *,
        connect_seconds: float = 5.0,
        read_seconds: float = 30.0,
    ) -> None:
        self.url, userinfo = without_userinfo(url)
        self.recoveries = 0
        self.accepted_at = time.monotonic()
        self._log_state = log_state
        self._down_since: float | None = None
        self._lock = threading.Lock()
        self._pool = Connections(connect_seconds, read_seconds)
        self._headers = {"Content-Type": CONTENT_TYPE, **request_headers(token, userinfo)}

    def send(self, run: str, stream: str, begin: int, end: int, batch: Batch) -> Answer:
        """Sends a stream's content from begin to end.

        Never raises for errors of the network or server.
        """
        url = f"{self.url}/api/v1/runs/{run}/streams/{stream}/frames?offset={begin}&end={end}"
        answer = self._post(url, encode_batch(batch))
        with self._lock:
            self._track_availability(answer)
        return answer

    def note_accepted(self) -> None:
        """Records that a batch was accepted.

        A 200 alone is not sufficient: any server can send it.
        """
        self.accepted_at = time.monotonic()

    def _post(self, url: str, content: bytes) -> Answer:
        try:
            response = self._pool.request("POST", url, self._headers, content)
        except NoAnswerError as error:
            return Answer(0, str(error))
        return decode_answer(response.status, response.body, response.headers.get("Retry-After"))

    def _track_availability(self, answer: Answer) -> None:
        if answer.unavailable and self._down_since is None:
            self._down_since = time.monotonic()
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            line = f"{self.url} accepts no data since {since} ({answer.detail}); the data stays on disk"
            self._log_state("collector", "down", line)
        elif not answer.unavailable and self._down_since is not None:
            seconds = time.monotonic() - self._down_since
            self._down_since = None
            self.recoveries += 1
            self._log_state("collector", "up", f"{self.url} is reachable again after {seconds:.1f} s")


class NoAnswerError(Exception):
    """No complete answer arrived; the text is the reason."""


@dataclass(frozen=True)
class Response:
    """A complete answer. Its headers are found in any case of letters."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class Connections:
    """The connections to servers, kept open and shared by threads. read_seconds: time limit for a whole answer."""

    def __init__(self, connect_seconds: float, read_seconds: float) -> None:
        timeout = urllib3.Timeout(connect=connect_seconds, read=read_seconds)
        self._pool = urllib3.PoolManager(maxsize=8, timeout=timeout)
        self._pool.pool_classes_by_scheme = {"http": _ConnectionPool, "https": _TlsConnectionPool}

    def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        content: bytes | None = None,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> Response:
        """Sends one request, once, and reads up to max_bytes of the answer. Raises NoAnswerError."""
        try:
            response = self._pool.request(
                method,
                url,
                body=content,
                headers=headers,
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,  # no encoding was requested, and unpacked data may have any size
            )
            body = _read_body(response, max_bytes)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise NoAnswerError(_reason_of(error)) from None
        if len(body) < max_bytes:
            response.release_conn()
        else:
            response.close()
        if not body and not any(response.headers.get(name) for name in ("Content-Length", "Transfer-Encoding")):
            # urllib3 returns it as a complete answer
            raise NoAnswerError("the connection closed before the end of the answer's headers")
        return Response(response.status, body, response.headers)

    def close(self) -> None:
        """Closes all connections."""
        self._pool.clear()


def request_headers(token: str | None, userinfo: str) -> dict[str, str]:
    """Returns the headers that a collector expects, with the token, or else with the credentials of the URL."""
    accepted = {"Accept": "application/json, application/problem+json"}
    if token:
        return accepted | {"Authorization": f"Bearer {token}"}
    return accepted | (urllib3.make_headers(basic_auth=userinfo) if userinfo else {})


def without_userinfo(url: str) -> tuple[str, str]:
    """Returns the URL without credentials, and its "user:password" or ''."""
    parts = urlsplit(url)
    userinfo, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=host)).rstrip("/"), unquote(userinfo)


def _read_body(response: urllib3.BaseHTTPResponse, max_bytes: int) -> bytes:
    """Returns up to max_bytes of an answer. Raises urllib3's errors if the connection closes before."""
    parts, missing = [], max_bytes
    while missing and (chunk := response.read(missing)):
        parts.append(chunk)
        missing -= len(chunk)
    return b"".join(parts)


class _DeadlineReader(io.RawIOBase):
    """Reads from a socket until one deadline, the socket's timeout from now.

    A socket's own timeout restarts with every byte, so that a slowly dripping answer would never end.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._file = connection.makefile("rb", buffering=0)
        seconds = connection.gettimeout()
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._deadline is not None:
            seconds = self._deadline - time.monotonic()
            if seconds <= 0:
                raise TimeoutError("the answer is not complete within the time limit")
            self._socket.settimeout(seconds)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self.fp = io.BufferedReader(_DeadlineReader(sock))


class _SendWithDeadline:
    """Sends a request's body in pieces, with one time limit for all of them."""

    sock: socket.socket | None

    def send(self, data: Any) -> None:
        if self.sock is None or not isinstance(data, bytes):
            super().send(data)  # type: ignore[misc]
            return
        deadline, unsent = time.monotonic() + SEND_SECONDS, memoryview(data)
        while unsent:
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                raise TimeoutError(f"{len(unsent)} of {len(data)} bytes are not sent after {SEND_SECONDS:.0f} s")
            self.sock.settimeout(seconds)
            unsent = unsent[self.sock.send(unsent[:SEND_BYTES]) :]


class _Connection(_SendWithDeadline, HTTPConnection):
    response_class = _Response


class _TlsConnection(_SendWithDeadline, HTTPSConnection):
    response_class = _Response


class _ConnectionPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsConnectionPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


def _reason_of(error: BaseException) -> str:
    """Returns the innermost reason, without the object names that urllib3 prepends."""
    reason = getattr(error, "reason", None) or error
    text = str(reason).rsplit(">: ", 1)[-1].rsplit("): ", 1)[-1]
    return _ERROR_NUMBER.sub("", text.removeprefix("Failed to establish a new connection: ")) or type(error).__name__
