from __future__ import annotations

import json
import re
import resource
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from ammeter_server.db import connect
from ammeter_server.http import server
from ammeter_server.http.security_headers import HEADERS
from ammeter_server.http.server import PatientProtocol
from tests.server.feeding import serving, wait_until

TOKEN = "f" * 40
COOKIE = {"Cookie": "ammeter_session=x"}


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.3)
    with serving(tmp_path) as client:
        yield client


def line(client: httpx.Client) -> socket.socket:
    return socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=10)


def rest(connection: socket.socket) -> bytes:
    """What comes until the other end closes."""
    found = b""
    while part := connection.recv(65536):
        found += part
    return found


def drip(connection: socket.socket, data: bytes, ended: threading.Event) -> None:
    for byte in data:
        if ended.wait(0.02):
            return
        try:
            connection.sendall(bytes([byte]))
        except OSError:
            return


@pytest.mark.parametrize("head", ["", "GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Long: " + "x" * 4000])
def test_a_head_that_trickles_is_given_up(client: httpx.Client, head: str) -> None:
    ended = threading.Event()
    with line(client) as connection:
        sender = threading.Thread(target=drip, args=(connection, head.encode(), ended))
        sender.start()
        try:
            answer = rest(connection)
        except ConnectionResetError:
            answer = b"HTTP/1.1 408"
        ended.set()
        sender.join()
    assert answer.startswith(b"HTTP/1.1 408")
    assert 200 == client.get("/livez").status_code


def test_a_head_without_an_end_is_not_held(client: httpx.Client) -> None:
    with line(client) as connection, suppress(ConnectionError):
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n")
        for number in range(100_000):  # 100 MB
            connection.sendall(b"X-%d: " % number + b"x" * 1000 + b"\r\n")
        raise AssertionError("all of it was taken")
    assert 200 == client.get("/livez").status_code


def test_a_long_head_that_ends_is_answered(client: httpx.Client) -> None:
    assert 200 == client.get("/livez", headers={"X-Long": "x" * 30_000}).status_code


def test_fields_behind_a_body_are_refused(client: httpx.Client) -> None:
    with line(client) as connection:
        connection.sendall(
            b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2\r\n{}\r\n0\r\nX-Late: 1\r\n\r\n"
        )
        assert rest(connection).startswith(b"HTTP/1.1 400")


GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
NO_REQUESTS = {
    "garbage": (400, b"hello\r\n\r\n"),
    "TLS": (400, bytes.fromhex("1603010200010001fc0303")),
    "a method that is none": (400, b"FOO / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "the preface of HTTP/2": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/2.0": (505, b"GET /livez HTTP/2.0\r\nHost: localhost\r\n\r\n"),
    "HTTP/3.0": (505, b"GET /livez HTTP/3.0\r\nHost: localhost\r\n\r\n"),
    "HTTP/0.9": (505, b"GET /livez\r\n\r\n"),
    "no Host": (400, b"GET /livez HTTP/1.1\r\n\r\n"),
    "two Hosts": (400, GET + b"Host: evil.example\r\n\r\n"),
    "two tokens": (400, GET + b"Authorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n"),
    "a NUL": (400, GET + b"X: a\x00b\r\n\r\n"),
    "a name with a space": (400, GET + b"X y: z\r\n\r\n"),
    "a folded field": (400, GET + b"X: y\r\n z\r\n\r\n"),
    "two lengths": (400, POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x"),
    "a length and chunks": (400, POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "a length below zero": (400, POST + b"Content-Length: -2\r\n\r\n"),
    "an encoding that is none": (400, POST + b"Transfer-Encoding: foo\r\n\r\n"),
    "a chunk that is none": (400, POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
    "fields behind a body": (400, POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Late: 1\r\n\r\n"),
    "a path that is no text": (400, b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "a head that does not come": (408, GET),
    "nothing": (408, b""),
    "an address that is too long": (414, b"GET /" + b"a" * 2**20),
    "fields that are too long": (431, GET + b"X: " + b"a" * 2**20),
    "a body that is too large": (413, POST + b"Content-Length: 9999\r\n\r\n"),
    "a media type that is none": (415, POST.replace(b"application/json", b"x") + b"Content-Length: 2\r\n\r\n{}"),
    "a method that is not there": (405, GET.replace(b"GET", b"TRACE") + b"\r\n"),
    "a tunnel": (400, b"CONNECT evil.example:80 HTTP/1.1\r\nHost: localhost\r\n\r\n"),
}


@pytest.mark.parametrize("name", NO_REQUESTS)
def test_what_is_no_request_is_answered_with_a_problem(client: httpx.Client, name: str) -> None:
    status, sent = NO_REQUESTS[name]
    with line(client) as connection:
        with suppress(ConnectionError):
            connection.sendall(sent)
        head, _, body = answered(connection).partition(b"\r\n\r\n")
    document = json.loads(body)
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    assert head.startswith(b"HTTP/1.1 %d " % status), head
    assert b"application/problem+json" == fields[b"content-type"]
    assert (status, "about:blank") == (document["status"], document["type"])
    assert document["title"]
    assert len(document["detail"]) > 20
    assert all(fields[name.lower().encode()] == value.lower().encode() for name, value in HEADERS.items())
    assert b"no-store" == fields[b"cache-control"]
    assert len(body) == int(fields[b"content-length"])
    assert 200 == client.get("/livez").status_code


def answered(connection: socket.socket) -> bytes:
    """The first answer that comes."""
    found = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(65536):
            found += part
            head, _, body = found.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            if length and len(body) >= int(length[1]):
                break
    return found


def test_nothing_is_said_into_the_answer_to_an_earlier_request(client: httpx.Client) -> None:
    with line(client) as connection:
        connection.sendall(b"GET /api/v1/runs HTTP/1.1\r\nHost: localhost\r\n\r\nnonsense\r\n\r\n")
        found = rest(connection)
    assert found.count(b"HTTP/1.1 ") <= 1
    assert b"400" not in found.partition(b"\r\n")[0]


def test_one_connection_too_many_is_told_so_in_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "max_connections", lambda: 3)
    with serving(tmp_path) as client, line(client), line(client), line(client), line(client):
        refused = client.get("/livez")
        assert (503, "application/problem+json") == (refused.status_code, refused.headers["content-type"])
        assert ("5", "DENY") == (refused.headers["retry-after"], refused.headers["x-frame-options"])
        assert "connections" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("path", "to"),
    [
        ("/api/v1/runs/", "/api/v1/runs"),
        ("/api/v1/runs/?page_size=5&x=//evil.example", "/api/v1/runs?page_size=5&x=//evil.example"),
        ("/runs/x/", "/runs/x"),
        ("/livez/", "/livez"),
        ("/static", "/static/"),
        ("/runbooks/run-lost/", "/runbooks/run-lost"),
    ],
)
@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost@evil.example", "localhost"])
def test_a_redirect_leads_to_no_other_host(client: httpx.Client, host: str, path: str, to: str) -> None:
    for more in ({}, {"X-Forwarded-Host": "evil.example"}, {"X-Forwarded-Proto": "https"}):
        answer = client.get(path, headers={"Host": host, **more})
        assert (307, to) == (answer.status_code, answer.headers["location"])


@pytest.mark.parametrize(
    "path", ["//evil.example/", "//evil.example/livez/", "/\\evil.example/", "//livez/", "/%2f/livez/"]
)
def test_no_path_makes_a_redirect_to_a_host(client: httpx.Client, path: str) -> None:
    with line(client) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = answered(connection).partition(b"\r\n\r\n")[0].lower()
    assert b"location: //" not in head
    assert b"location: http" not in head


def test_the_rest_of_a_body_that_was_refused_is_not_waited_for(client: httpx.Client) -> None:
    ended = threading.Event()
    head = "POST /api/v1/runs/x/streams/y/frames?offset=0&end=1 HTTP/1.1\r\nHost: localhost\r\n"
    with line(client) as connection:
        connection.sendall(f"{head}Content-Length: 9000\r\n\r\n".encode())
        sender = threading.Thread(target=drip, args=(connection, bytes(9000), ended))
        sender.start()
        try:
            answer = rest(connection)
        except ConnectionResetError:
            answer = b"HTTP/1.1 415"
        ended.set()
        sender.join()
    assert answer.startswith(b"HTTP/1.1 415")


def test_an_answer_that_nobody_reads_is_given_up(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = threading.Event()
    lost = PatientProtocol.connection_lost

    def connection_lost(protocol: PatientProtocol, reason: Exception | None) -> None:
        lost(protocol, reason)
        closed.set()  # whoever does not read does not see it

    monkeypatch.setattr(server, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(PatientProtocol, "connection_lost", connection_lost)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", client.base_url.port or 0))
        connection.settimeout(0.1)
        with suppress(TimeoutError):  # 60 MB of answers, which no buffer between us holds
            connection.sendall(b"GET /static/vendor/uplot/uPlot.esm.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400)
        assert closed.wait(20), "not closed within 20 s"
    assert 200 == client.get("/livez").status_code


def test_a_connection_is_kept_for_request_after_request(client: httpx.Client) -> None:
    with line(client) as connection:
        for _ in range(3):
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while b'"alive"}' not in answer:
                answer += connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200")


def test_an_answer_that_takes_longer_than_a_head_may_is_given(client: httpx.Client, tmp_path: Path) -> None:
    store = connect(f"sqlite:///{tmp_path / 'collector.db'}")
    answers: list[int] = []
    path, header = f"/api/v1/incidents/{uuid.uuid4()}.run-lost.1/close", {"X-Ammeter-Request": "test"}
    asking = threading.Thread(target=lambda: answers.append(client.post(path, headers=header).status_code))
    with store.writing():  # which the change has to wait for
        asking.start()
        asking.join(3 * server.HEAD_SECONDS)
        assert asking.is_alive()
    asking.join()
    store.close()
    assert [404] == answers


def test_one_connection_too_many_is_told_to_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "max_connections", lambda: 3)
    with serving(tmp_path) as client:
        held = [line(client) for _ in range(4)]
        try:
            wait_until(lambda: asked(client) == 503)
        finally:
            for connection in held:
                connection.close()
        wait_until(lambda: asked(client) == 200)


def asked(client: httpx.Client) -> int:
    with httpx.Client(base_url=client.base_url) as another:
        return another.get("/livez").status_code


def test_connections_leave_files_for_the_database() -> None:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 0 < server.max_connections() < allowed
