"""Sends one request to the collector and decodes the answer; the agent's only HTTP code."""

from __future__ import annotations

import email.utils
import http.client
import io
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from ammeter.wire.codec import encode_batch
from ammeter.wire.frames import CONTENT_TYPE, Ack, Batch

Say = Callable[[str, str, str], None]
"""(about, state, line): writes the line to the log if the state of the subject has changed."""

MAX_ANSWER_BYTES = 2**20
"""Limit of what is read of an answer. A collector answers in a few hundred bytes; any other server may send more."""

SEND_SECONDS = 30.0
"""Time limit for sending a whole request. A server that accepts one byte now and then would otherwise block a stream
for as long as it likes."""

SEND_BYTES = 2**16
"""Size of the pieces in which a request is sent."""

SLOW_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Waits in seconds while the collector rejects the URL or token: 401, 403, 404."""

FIRST_BACKOFF, LAST_BACKOFF = 0.25, 30.0
"""In seconds. A restarted collector is reached within one or two tries, and after a long outage notifications arrive
within half a minute."""

MAX_RETRY_AFTER = 600.0
"""In seconds. A proxy that asks for a wait of a day must not delay a page for longer."""


@dataclass(frozen=True)
class Answer:
    """The answer to one request.

    status: HTTP status, 0 without an answer. offset: what the collector has. item: index of the refused item. wait:
    seconds from Retry-After.
    """

    status: int
    detail: str = ""
    offset: int | None = None
    item: int | None = None
    wait: float | None = None
    directives: list[dict[str, Any]] = field(default_factory=list)

    @property
    def unavailable(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.status in (0, 408, 425, 429) or self.status >= 500


class Problem(msgspec.Struct):
    """The members of a problem+json document that the sender evaluates."""

    title: str = ""
    detail: str = ""
    offset: int | None = None
    item: int | None = None


class Collector:
    """The connection to one collector, shared by all streams and threads of a shipper.

    connect, read: time limits in seconds for a connection and for a whole answer. recoveries: how often the collector
    became reachable again, after which waiting streams retry at once. accepted: time.monotonic() of the last accepted
    batch.
    """

    def __init__(self, url: str, token: str | None, say: Say, *, connect: float = 5.0, read: float = 30.0) -> None:
        self.url, userinfo = without_userinfo(url)
        self.recoveries = 0
        self.accepted = time.monotonic()
        self._say = say
        self._down_since: float | None = None
        self._lock = threading.Lock()
        self._pool = _pool(connect, read)
        self._headers = {"Content-Type": CONTENT_TYPE, "Accept": "application/json, application/problem+json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        elif userinfo:
            self._headers |= urllib3.make_headers(basic_auth=userinfo)

    def send(self, run: str, stream: str, begin: int, end: int, batch: Batch) -> Answer:
        """Sends a stream's content from begin to end.

        Never raises for errors of the network or server.
        """
        url = f"{self.url}/api/v1/runs/{run}/streams/{stream}/frames?offset={begin}&end={end}"
        answer = self._post(url, encode_batch(batch))
        with self._lock:
            self._note(answer)
        return answer

    def accepts(self) -> None:
        """Records that a batch was accepted.

        A 200 alone is not sufficient: any server can send it.
        """
        self.accepted = time.monotonic()

    def _post(self, url: str, body: bytes) -> Answer:
        try:
            response = self._pool.request(
                "POST",
                url,
                body=body,
                headers=self._headers,
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,  # no encoding was requested, and unpacked data may have any size
            )
            text = _text(response)
            if len(text) < MAX_ANSWER_BYTES:
                response.release_conn()
            else:
                response.close()
            if not text and not any(response.headers.get(name) for name in ("Content-Length", "Transfer-Encoding")):
                return Answer(0, "the answer broke off in its head")  # urllib3 returns it as a complete answer
            return answer(response.status, text, response.headers.get("Retry-After"))
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return Answer(0, _plainly(error))

    def _note(self, answer: Answer) -> None:
        if answer.unavailable and self._down_since is None:
            self._down_since = time.monotonic()
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            self._say("collector", "down", f"{self.url} takes nothing since {since} ({answer.detail}); data is kept")
        elif not answer.unavailable and self._down_since is not None:
            seconds = time.monotonic() - self._down_since
            self._down_since = None
            self.recoveries += 1
            self._say("collector", "up", f"{self.url} answers again after {seconds:.1f} s")


def without_userinfo(url: str) -> tuple[str, str]:
    """Returns the URL without credentials, and its "user:password" or ''."""
    parts = urlsplit(url)
    userinfo, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=host)).rstrip("/"), unquote(userinfo)


@dataclass(frozen=True)
class Looked:
    """The state of a collector.

    ready: the answer to /readyz, which took `seconds`. taken: the answer to an empty batch of a nonexistent run, which
    the collector does not store. ahead: seconds by which the collector's clock is ahead of ours; None if unknown.
    """

    ready: Answer
    seconds: float = 0.0
    taken: Answer = Answer(0)
    ahead: float | None = None


def look(url: str, token: str | None, *, connect: float = 5.0, read: float = 10.0) -> Looked:
    """Checks whether a collector is ready and accepts this token. Never raises for network errors."""
    pool = _pool(connect, read)
    began = time.monotonic()
    try:
        found = pool.request(
            "GET",
            f"{url.rstrip('/')}/readyz",
            retries=False,
            redirect=False,
            preload_content=False,
            decode_content=False,
        )
        text, seconds = _text(found), time.monotonic() - began
    except (urllib3.exceptions.HTTPError, OSError) as error:
        return Looked(Answer(0, _plainly(error)))
    finally:
        pool.clear()
    ready = Answer(200) if found.status == 200 and b'"ready"' in text else answer(found.status, text)
    if ready.status != 200:
        return Looked(ready, seconds)
    way = Collector(url, token, lambda *_: None, connect=connect, read=read)
    taken = way.send(str(uuid.uuid4()), uuid.uuid4().hex, 0, 0, Batch())
    return Looked(ready, seconds, taken, _ahead(found.headers.get("Date")))


def _text(response: urllib3.BaseHTTPResponse) -> bytes:
    """Returns up to MAX_ANSWER_BYTES of an answer. Raises urllib3's errors if it breaks off."""
    text = b""
    while len(text) < MAX_ANSWER_BYTES and (more := response.read(MAX_ANSWER_BYTES - len(text))):
        text += more
    return text


def _pool(connect: float, read: float) -> urllib3.PoolManager:
    pool = urllib3.PoolManager(maxsize=8, timeout=urllib3.Timeout(connect=connect, read=read))
    pool.pool_classes_by_scheme = {"http": _Connections, "https": _TlsConnections}
    return pool


class _UntilDeadline(io.RawIOBase):
    """Reads from a socket until one deadline, the socket's timeout from now.

    A socket's own timeout restarts with every byte, so that a slowly dripping answer would never end.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._file = connection.makefile("rb", buffering=0)
        seconds = connection.gettimeout()
        self._ends = None if seconds is None else time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._ends is not None:
            left = self._ends - time.monotonic()
            if left <= 0:
                raise TimeoutError("the answer has no end")
            self._socket.settimeout(left)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        self.fp.close()
        self.fp = io.BufferedReader(_UntilDeadline(sock))


class _Sending:
    """Sends a request's body in pieces, with one time limit for all of them."""

    sock: socket.socket | None

    def send(self, data: Any) -> None:
        if self.sock is None or not isinstance(data, bytes):
            super().send(data)  # type: ignore[misc]
            return
        ends, left = time.monotonic() + SEND_SECONDS, memoryview(data)
        while left:
            seconds = ends - time.monotonic()
            if seconds <= 0:
                raise TimeoutError(f"{len(left)} of {len(data)} bytes were not taken within {SEND_SECONDS:.0f} s")
            self.sock.settimeout(seconds)
            left = left[self.sock.send(left[:SEND_BYTES]) :]


class _Connection(_Sending, HTTPConnection):
    response_class = _Response


class _TlsConnection(_Sending, HTTPSConnection):
    response_class = _Response


class _Connections(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsConnections(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


def _ahead(date: str | None) -> float | None:
    """Returns the seconds by which a Date header is ahead of this clock.

    The header has whole seconds, so the middle of its second is compared.
    """
    try:
        return email.utils.parsedate_to_datetime(date).timestamp() + 0.5 - time.time() if date else None
    except ValueError:
        return None


def answer(status: int, text: bytes, retry_after: str | None = None) -> Answer:
    """Converts an HTTP response to an Answer.

    A 200 whose body is not an Ack does not come from a collector and counts as 404.
    """
    wait = retry_seconds(retry_after)
    if status == 200:
        try:
            ack = msgspec.json.decode(text, type=Ack)
        except msgspec.DecodeError:
            ack = Ack(-1)
        if ack.offset < 0:
            return Answer(404, "200, but from something that is no collector", wait=wait)
        return Answer(200, "", ack.offset, directives=ack.directives)
    try:
        problem = msgspec.json.decode(text, type=Problem)
    except msgspec.DecodeError:
        problem = Problem()
    detail = f"{status} {problem.detail or problem.title}".strip()
    return Answer(status, detail, problem.offset, problem.item, wait)


def retry_seconds(said: str | None) -> float | None:
    """Returns the seconds of a Retry-After header, at most ten minutes; None without one.

    The header may contain a number or a date.
    """
    if not said:
        return None
    try:
        seconds = float(said)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(said).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(0.0, seconds), MAX_RETRY_AFTER)


def backoff(failures: int) -> float:
    """Returns the wait in seconds after so many consecutive failures.

    The wait doubles, with jitter, so that ranks do not retry at the same time.
    """
    longest: float = min(LAST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(failures - 1, 20))
    return longest * random.uniform(0.5, 1.0)


def slow(failures: int) -> float:
    """Returns the wait in seconds after so many rejections of the URL or token."""
    return SLOW_SECONDS[min(failures, len(SLOW_SECONDS)) - 1]


def _plainly(error: BaseException) -> str:
    """Returns the innermost reason, without the object names that urllib3 prepends."""
    reason = getattr(error, "reason", None) or error
    said = str(reason).rsplit(">: ", 1)[-1].rsplit("): ", 1)[-1]
    return said or type(error).__name__
