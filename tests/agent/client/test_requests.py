"""Requests of the client that fail: what is repeated, and what each error says."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ammeter.client import (
    Client,
    CollectorTooOldError,
    NotACollectorError,
    NotFoundError,
    RefusedError,
    UnauthorizedError,
    UnreachableError,
)
from tests.agent.client.conftest import Fleet
from tests.e2e.processes import free_port
from tests.server.feeding import serving

EMPTY: dict[str, Any] = {"items": [], "next_page_token": None}


@dataclass
class Server:
    """Stands in for a collector that fails, an old one, and another server: answers what is told, in order."""

    url: str = ""
    answers: deque[tuple[int, Any, dict[str, str]]] = field(default_factory=deque)
    requests: list[tuple[str, str]] = field(default_factory=list)

    def say(self, status: int, content: Any, **headers: str) -> None:
        self.answers.append((status, content, {name.replace("_", "-"): value for name, value in headers.items()}))


@contextmanager
def server() -> Iterator[Server]:
    told = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.requests.append((self.command, self.path))
            status, content, headers = told.answers.popleft()
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: Any) -> None: ...

    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.url = f"http://127.0.0.1:{serving.server_port}"
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield told
    finally:
        serving.shutdown()
        thread.join()
        serving.server_close()


def test_a_collector_that_does_not_run_is_named_with_the_reason() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(UnreachableError, match="Connection refused") as raised:
        Client(url, repeats=1).run("x")
    assert 0 == raised.value.status
    assert f"{url} cannot be reached" in str(raised.value)
    assert "in 2 attempts; check the address and that the collector runs" in str(raised.value)


def test_credentials_in_the_url_are_not_in_an_error() -> None:
    with pytest.raises(UnreachableError) as raised:
        Client(f"http://me:secret@127.0.0.1:{free_port()}", repeats=0).run("x")
    assert "secret" not in str(raised.value)


def test_a_request_is_repeated_until_the_collector_is_available() -> None:
    with server() as told:
        told.say(503, {"detail": "the database does not respond"}, Retry_After="0")
        told.say(502, b"<html>")
        told.say(200, EMPTY)
        assert [] == list(Client(told.url).runs())
    assert [("GET", "/api/v1/runs?page_size=100")] * 3 == told.requests


def test_a_change_of_an_incident_is_repeated_too() -> None:
    with server() as told:
        told.say(503, {}, Retry_After="0")
        told.say(200, {"id": "i", "run": "r", "verdict": "v", "state": "acknowledged"})
        assert "acknowledged" == Client(told.url).acknowledge("i").state
    assert [("POST", "/api/v1/incidents/i/acknowledge")] * 2 == told.requests


def test_a_collector_that_stays_unavailable_is_an_error_with_its_reason() -> None:
    with server() as told:
        for _ in range(3):
            told.say(503, {"detail": "the database does not respond"}, Retry_After="0")
        with pytest.raises(UnreachableError, match=r"503 the database does not respond.*in 3 attempts") as raised:
            list(Client(told.url, repeats=2).runs())
    assert 503 == raised.value.status


def test_a_long_wait_is_left_to_the_caller() -> None:
    with server() as told:
        told.say(429, {"detail": "too many requests"}, Retry_After="120")
        with pytest.raises(UnreachableError, match="try again in 120 s"):
            list(Client(told.url).runs())
    assert 1 == len(told.requests)


def test_an_answer_that_does_not_end_is_given_up_after_the_time_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        began = time.monotonic()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(UnreachableError, match=r"timed out|time limit"):
            Client(url, timeout=0.3, repeats=0).run("x")
    assert 0.25 < time.monotonic() - began < 10


def test_a_missing_token_and_a_wrong_one_are_different_errors(tmp_path: Path) -> None:
    with serving(tmp_path, token="t" * 40) as collector:
        url = str(collector.base_url)
        assert [] == list(Client(url, "t" * 40).runs())
        with pytest.raises(UnauthorizedError, match="needs a token") as missing:
            list(Client(url).runs())
        with pytest.raises(UnauthorizedError, match="does not accept the token") as wrong:
            list(Client(url, "w" * 40).runs())
    assert [401, 401] == [missing.value.status, wrong.value.status]
    assert "ammeter-server token create NAME --scopes read" in str(wrong.value)


def test_url_and_token_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="AMMETER_URL is not set"):
        Client()
    with serving(tmp_path, token="t" * 40) as collector:
        monkeypatch.setenv("AMMETER_URL", str(collector.base_url))
        monkeypatch.setenv("AMMETER_TOKEN", "t" * 40)
        assert [] == list(Client().runs())


@pytest.mark.parametrize("url", ["localhost:8480", "ftp://collector"])
def test_an_address_of_another_kind_is_refused_with_the_remedy(url: str) -> None:
    with pytest.raises(ValueError, match=r"use http:// or https://"):
        Client(url)


def test_a_run_that_does_not_exist_is_not_found(fleet: Fleet) -> None:
    with pytest.raises(NotFoundError, match="there is no run 'x'; GET /api/v1/runs lists all runs") as raised:
        Client(fleet.url).run("x")
    assert 404 == raised.value.status


def test_a_value_that_the_collector_refuses_is_named(fleet: Fleet) -> None:
    with pytest.raises(RefusedError, match="state is 'shut'") as raised:
        list(Client(fleet.url).incidents(state="shut"))
    assert 422 == raised.value.status


def test_a_collector_without_the_resource_is_too_old() -> None:
    with server() as told:
        told.say(404, {"title": "Not Found"}, Content_Type="application/problem+json")
        told.say(200, {"info": {"version": "0.0.9"}, "paths": {"/api/v1/runs": {}}})
        with pytest.raises(CollectorTooOldError, match=r"is version 0\.0\.9 and has no /api/v1/runs/\{run\}/series"):
            list(Client(told.url).curves("r", "loss"))


def test_an_answer_in_another_form_names_the_version() -> None:
    with server() as told:
        told.say(200, {"name": "without an id"})
        told.say(200, {"info": {"version": "9.0"}, "paths": {}})
        with pytest.raises(CollectorTooOldError, match=r"the collector 9\.0 at .* answers .* in another form"):
            Client(told.url).run("r")


@pytest.mark.parametrize("status", [200, 404])
def test_another_server_is_no_collector(status: int) -> None:
    with server() as told:
        told.say(status, b"<html>hello</html>")
        told.say(404, b"<html>nothing</html>")
        with pytest.raises(NotACollectorError, match="but not as a collector"):
            list(Client(told.url).runs())


@pytest.mark.parametrize("body", [b"", b"\xff\xff\xff\x7f{}", b"\x02\0\0\0{}"])
def test_curves_that_break_off_are_an_error(body: bytes) -> None:
    with server() as told:
        told.say(200, body)
        told.say(200, {"info": {"version": "0.2.0"}, "paths": {}})
        with pytest.raises(CollectorTooOldError):
            list(Client(told.url).curves("r", "loss"))
