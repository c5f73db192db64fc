"""What the collector's answers mean to the sender."""

from __future__ import annotations

import base64
import gzip
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from ammeter.shipper import http
from ammeter.shipper.answers import Answer
from ammeter.shipper.http import Collector
from ammeter.shipper.stream import Delivery
from ammeter.wire.frames import Batch
from tests.agent.collector_double import Reply, collector_double
from tests.agent.ship_parts import RUN, STREAM, hello, present_frames, row, writer
from tests.parts import need


def quiet(about: str, state: str, line: str) -> None:
    """Says nothing."""


def test_a_batch_is_sent_with_its_range_and_the_token() -> None:
    with collector_double() as double:
        got = Collector(double.url + "/", "secret", quiet).send(RUN, STREAM, 0, 7, Batch([hello()], backlog=3))
    assert Answer(200, "", 7) == got
    assert [("Bearer secret", 0, 7, 3)] == [(r.token, r.begin, r.end, r.batch.backlog) for r in double.requests]


def test_a_redirect_is_not_followed() -> None:
    with collector_double() as double:
        double.script.append(Reply(302, headers={"Location": "http://127.0.0.1:9/"}))
        assert 302 == Collector(double.url, None, quiet).send(RUN, STREAM, 0, 7, Batch()).status


def test_nobody_there_is_an_answer_too_and_is_told_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        lines: list[str] = []
        nobody = Collector(f"http://127.0.0.1:{taken.getsockname()[1]}", None, lambda *said: lines.append(said[2]))
        answers = [nobody.send(RUN, STREAM, 0, 7, Batch()) for _ in range(3)]
    assert [0, 0, 0] == [answer.status for answer in answers]
    assert all(answer.unavailable for answer in answers)
    assert 1 == len(lines)
    assert "Connection refused" in lines[0]


def test_an_answer_that_breaks_off_anywhere_is_none() -> None:
    """A connection that is cut says nothing of who was at its other end, least of all that it is no collector."""
    whole = b'HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 31\r\n\r\n{"offset": 7, "directives": []}'
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def cut() -> None:
            for length in range(1, len(whole)):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(whole[:length])

        thread = threading.Thread(target=cut)
        thread.start()
        way = Collector(f"http://127.0.0.1:{listening.getsockname()[1]}", None, quiet)
        found = {way.send(RUN, STREAM, 0, 7, Batch()).status for _ in range(1, len(whole))}
        thread.join()
    assert {0} == found


def test_coming_back_is_told_and_counted() -> None:
    lines: list[str] = []
    with collector_double() as double:
        double.script.append(Reply(503))
        collector = Collector(double.url, None, lambda *said: lines.append(said[1]))
        statuses = [collector.send(RUN, STREAM, 0, 7, Batch()).status for _ in range(2)]
    assert [503, 200] == statuses
    assert ["down", "up"] == lines
    assert 1 == collector.recoveries


def test_a_collector_that_hangs_is_left_after_the_timeout() -> None:
    release = threading.Event()
    with collector_double() as double:
        double.script.append(Reply(hang=release))
        begun = time.monotonic()
        assert 0 == Collector(double.url, None, quiet, read_seconds=0.2).send(RUN, STREAM, 0, 7, Batch()).status
        assert time.monotonic() - begun < 2
        release.set()


WHOLE = b'HTTP/1.1 200 OK\r\ncontent-length: 31\r\n\r\n{"offset": 7, "directives": []}'

DRIPS = {
    "in its status line": (b"", b"HTTP/1.1 200 OK OK OK OK OK OK OK OK OK OK OK OK OK OK OK OK"),
    "in its headers": (b"HTTP/1.1 200 OK\r\n", b"x-long: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"),
    "in headers without end": (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n" * 20),
    "in its body": (b"HTTP/1.1 200 OK\r\ncontent-length: 300\r\n\r\n", b" " * 100),
    "in its chunks": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 20),
    "in a body without length": (b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", b" " * 100),
    "by saying that it goes on": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 5),
}


@contextmanager
def dripping(first: bytes, rest: bytes, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server that sends the rest of its answer byte by byte; its URL."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            plain, _ = listening.accept()
            with suppress(OSError), context.wrap_socket(plain, server_side=True) if context else plain as connection:
                connection.recv(65536)
                connection.sendall(first)
                for byte in rest:
                    if ended.wait(0.05):
                        return
                    connection.sendall(bytes([byte]))
                ended.wait(10)

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            yield f"http{'s' if context else ''}://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            ended.set()
            thread.join()


@pytest.mark.parametrize("where", DRIPS)
def test_an_answer_that_drips_is_left_after_the_timeout_as_a_whole(where: str) -> None:
    with dripping(*DRIPS[where]) as url:
        begun = time.monotonic()
        got = Collector(url, None, quiet, read_seconds=0.4).send(RUN, STREAM, 0, 7, Batch())
        assert 0 == got.status, got
        assert 0.3 < time.monotonic() - begun < 2


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ssl.SSLContext]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    command = [need("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-out", cert, "-keyout", key], check=True, capture_output=True)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(cert, key)
    os.environ["SSL_CERT_FILE"] = cert
    yield made
    del os.environ["SSL_CERT_FILE"]


def test_an_answer_that_drips_through_tls_is_left_too(context: ssl.SSLContext) -> None:
    with dripping(*DRIPS["in its body"], context) as url:
        begun = time.monotonic()
        got = Collector(url, None, quiet, read_seconds=0.4).send(RUN, STREAM, 0, 7, Batch())
        assert (0, True) == (got.status, "time" in got.detail), got
        assert 0.3 < time.monotonic() - begun < 2


@pytest.mark.parametrize("tls", [False, True])
def test_a_slow_answer_that_comes_in_time_is_taken_and_its_connection_used_again(
    tls: bool, request: pytest.FixtureRequest
) -> None:
    with dripping(WHOLE[:-10], WHOLE[-10:], request.getfixturevalue("context") if tls else None) as url:
        assert 7 == Collector(url, None, quiet).send(RUN, STREAM, 0, 7, Batch()).offset
    with collector_double() as double:
        way = Collector(double.url, None, quiet, read_seconds=0.3)
        for _ in range(4):  # each answer has its own time
            assert 200 == way.send(RUN, STREAM, 0, 7, Batch()).status
            time.sleep(0.1)


@pytest.mark.parametrize("tls", [False, True])
def test_a_request_that_is_taken_in_drops_is_given_up(
    tls: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "SEND_SECONDS", 0.5)
    context, ended = request.getfixturevalue("context") if tls else None, threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

        def sip() -> None:
            plain, _ = listening.accept()
            with suppress(OSError), context.wrap_socket(plain, server_side=True) if context else plain as connection:
                while not ended.wait(0.02):
                    connection.recv(1000)

        thread = threading.Thread(target=sip)
        thread.start()
        url = f"http{'s' if tls else ''}://127.0.0.1:{listening.getsockname()[1]}"
        batch = Batch([msgspec.structs.replace(hello(), config={"x": "x" * 2**24})])
        begun = time.monotonic()
        try:
            got = Collector(url, None, quiet).send(RUN, STREAM, 0, 7, batch)
            seconds = time.monotonic() - begun
        finally:
            ended.set()
            thread.join()
    assert 0 == got.status
    assert 0.4 < seconds < 3


def test_an_answer_that_is_packed_is_not_unpacked() -> None:
    packed = gzip.compress(b'{"offset": 7}' + b" " * 2**28)
    head = f"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {len(packed)}\r\n\r\n".encode()
    with dripping(head + packed, b"") as url:
        assert 404 == Collector(url, None, quiet).send(RUN, STREAM, 0, 7, Batch()).status


def test_a_user_and_a_password_in_the_address_are_sent_where_there_is_no_token_and_told_nobody() -> None:
    secret, lines = "pass" + "Word771", list[str]()
    with collector_double() as double:
        url = double.url.replace("http://", f"http://bob:{secret}@")
        for token in (None, "t"):
            way = Collector(url, token, lambda _, __, line: lines.append(line))
            assert 200 == way.send("r", "s", 0, 0, Batch()).status
        first, second = [request.token for request in double.requests]
    assert (f"Basic {base64.b64encode(f'bob:{secret}'.encode()).decode()}", "Bearer t") == (first, second)
    assert 0 == way.send("r", "s", 0, 0, Batch()).status
    assert secret not in str(lines)
    assert "127.0.0.1" in str(lines)


def test_a_run_that_was_deleted_is_given_up_and_its_journal_stays(tmp_path: Path) -> None:
    lines = list[str]()
    with collector_double() as double:
        double.rules.append(lambda request: Reply(410, {"title": "Gone", "detail": "the run was deleted here"}))
        opened = writer(tmp_path)
        opened.append(row(0))
        way = Collector(double.url, None, quiet)
        delivery = Delivery(opened.folder, way, lambda _, __, line: lines.append(line))
        delivery.poll()
        assert delivery.done
        asked = len(double.requests)
        delivery.poll()
        assert asked == len(double.requests)
        opened.close()
    assert "was deleted here" in lines[-1]
    assert f"its journal stays in {opened.folder}" in lines[-1]
    assert [row(0)] == present_frames(opened.folder)[1:]
