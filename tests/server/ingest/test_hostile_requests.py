"""A hostile request changes nothing, and its answer names the error."""

from __future__ import annotations

import socket

import pytest

from ammeter.wire import frames
from ammeter.wire.frames import Hello
from tests.server.ingest.senders import SCHEMA, Place, Sender

LARGE = "9" * 30


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/runs/{run}/series?names=loss&rank=" + LARGE,
        "/api/v1/runs/{run}/series?names=loss&from=" + LARGE + "&to=" + LARGE,
        "/api/v1/runs/{run}/series?names=loss&stream=%00",
        "/api/v1/runs/{run}/events?from=" + LARGE,
        "/api/v1/runs/{run}/events?rank=" + LARGE,
        "/api/v1/runs/{run}/events?name=%00",
        "/api/v1/runs/{run}/tensors?rank=" + LARGE,
        "/api/v1/runs?project=%00",
        "/api/v1/runs/%00",
        "/api/v1/incidents/%00.x.1",
        "/api/v1/runs?page_token=WzExODA1OTE2MjA3MTc0MTEzMDM0MjQsIngiXQ",
        "/api/v1/runs?page_token=" + "W1tb" * 5000,
        "/api/v1/runs?page_token=%C3%A9",
    ],
)
def test_a_question_that_cannot_be_is_a_problem_of_who_asked(sender: Sender, path: str) -> None:
    sender.open()
    answer = sender.client.get(path.format(run=sender.run))
    assert (422, "application/problem+json") == (answer.status_code, answer.headers["content-type"]), answer.text


def test_names_that_are_sql_find_nothing_and_harm_nothing(sender: Sender) -> None:
    sender.open()
    for name in ("'; drop table runs--", '" or 1=1 --', "%", "demo' or 'a'='a"):
        answer = sender.client.get("/api/v1/runs", params={"project": name})
        assert [] == answer.json()["items"]
    assert 200 == sender.client.get(f"/api/v1/runs/{sender.run}").status_code


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2f..%2fapp.py",
        "/static/%2e%2e/templates/layout.html",
        "/static//etc/passwd",
        "/static/%00",
        "//etc/passwd",
        "/runbooks/../../../etc/passwd",
        "/runbooks/..%2f..%2fetc%2fpasswd",
        "/api/v1/dashboards/..%2f..%2f..%2fpyproject",
        "/api/v1/dashboards/../../../pyproject.toml",
    ],
)
def test_no_path_leads_out_of_its_folder(place: Place, path: str) -> None:
    assert b" 404 " in asked(place, f"GET {path} HTTP/1.1\r\nHost: localhost").split(b"\r\n")[0]


@pytest.mark.parametrize(
    ("host", "status"), [("evil.example", 421), ("localhost.evil.example", 421), ("127.0.0.1:1", 200), ("", 421)]
)
def test_without_a_token_only_this_machine_s_names_are_answered(place: Place, host: str, status: int) -> None:
    answer = asked(place, f"GET /api/v1/runs HTTP/1.1\r\nHost: {host}")
    assert str(status).encode() == answer.split(b" ")[1]


def asked(place: Place, head: str) -> bytes:
    """The answer to a request that no client would send."""
    port = place.client.base_url.port
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        line.sendall(f"{head}\r\nConnection: close\r\n\r\n".encode("latin-1"))
        answer = b""
        while part := line.recv(65536):
            answer += part
    return answer


def test_a_body_that_trickles_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ammeter_server.http.limits.body.MAX_BODY_SECONDS", 0.2)
    sender = Sender(place.client, place.store)
    head = f"POST /api/v1/runs/{sender.run}/streams/{sender.stream}/frames?offset=0&end=1 HTTP/1.1\r\nHost: localhost"
    answer = asked(place, f"{head}\r\nContent-Type: {frames.CONTENT_TYPE}\r\nContent-Length: 1000")
    assert b" 408 " in answer.split(b"\r\n")[0]


@pytest.mark.parametrize("path", ["/api/v1/runs?page_size=", "/api/v1/runs?state=", "/no/such/"])
def test_a_long_question_is_not_echoed_at_length(place: Place, path: str) -> None:
    answer = place.client.get(path + 50_000 * "x")
    assert answer.status_code in (404, 422)
    assert len(answer.content) < 2000


def test_a_long_name_is_not_echoed_at_length(sender: Sender) -> None:
    answer = sender.post([Hello("x" * 10**6, "y" * 10**6, SCHEMA)], 0, 10)
    assert 422 == answer.status_code
    assert len(answer.content) < 2000
