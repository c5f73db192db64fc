from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ammeter_server.auth import tokens
from ammeter_server.auth.callers import COOKIE
from ammeter_server.db import Store
from ammeter_server.http.limits.token_guesses import MAX_GUESSES, WINDOW_SECONDS
from tests.server.callers import Guarded, bearer, guarded
from tests.server.feeding import Stream, serving, train, wait_until

READ = "/api/v1/runs"
FILE_TOKEN = "f" * 40


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Guarded]:
    with guarded(tmp_path) as place:
        yield place


@pytest.fixture
def client(place: Guarded) -> httpx.Client:
    return place.client


@pytest.fixture
def store(place: Guarded) -> Store:
    return place.store


def test_without_any_token_everything_on_loopback_is_open(client: httpx.Client) -> None:
    stream = Stream(client)
    train(stream, 0, 3)
    assert 200 == stream.send().status_code
    assert 200 == client.get(READ).status_code


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8480", "127.0.0.1.evil.example", ""])
def test_a_name_from_elsewhere_that_leads_here_is_refused(client: httpx.Client, host: str) -> None:
    assert client.get(READ, headers={"Host": host}).status_code in (400, 421)


@pytest.mark.parametrize("host", ["localhost:1", "[::1]:8480", "127.0.0.1"])
def test_this_machines_own_names_are_answered(client: httpx.Client, host: str) -> None:
    assert 200 == client.get(READ, headers={"Host": host}).status_code


def test_the_public_name_is_answered_to_those_who_have_a_token(tmp_path: Path) -> None:
    with serving(tmp_path, token=FILE_TOKEN, public_url="https://ammeter.example") as client:
        named = {"Host": "ammeter.example"}
        assert 200 == client.get(READ, headers=named | bearer(FILE_TOKEN)).status_code
        assert 401 == client.get(READ, headers=named).status_code


def test_a_collector_with_a_public_name_is_never_open(tmp_path: Path) -> None:
    with guarded(tmp_path, public_url="https://ammeter.example") as place:
        for host in ("ammeter.example", "127.0.0.1"):
            assert 401 == place.client.get(READ, headers={"Host": host}).status_code


@pytest.mark.parametrize(
    "header",
    [
        "Forwarded: for=10.1.2.3",
        "X-Forwarded-For: 127.0.0.1",
        "x-forwarded-host: localhost",
        "X-FORWARDED-PROTO: https",
        "X-Forwarded-Port: 80",
        "X-Forwarded-For:",
        "X-Real-IP: 10.1.2.3",
        "Via: 1.1 proxy",
        "CF-Connecting-IP: 10.1.2.3",
        "True-Client-IP: 10.1.2.3",
    ],
)
@pytest.mark.parametrize("trusted", [(), ("127.0.0.0/8",)])
def test_what_a_proxy_hands_on_is_refused_without_a_token(tmp_path: Path, header: str, trusted: tuple[str]) -> None:
    name, _, value = header.partition(":")
    with guarded(tmp_path, trusted_proxies=trusted) as place:
        stream = Stream(place.client)
        train(stream, 0, 3)
        assert 200 == stream.send().status_code  # what was let in is remembered for a moment
        for path in (READ, "/metrics", "/api/v1/audit", f"/api/v1/runs/{stream.run}/live", "/openapi.json"):
            refused = place.client.get(path, headers={name: value.strip()})
            assert (403, "application/problem+json") == (refused.status_code, refused.headers["content-type"])
            detail = refused.json()["detail"]
            assert all(word in detail for word in (name.lower(), "AMMETER_SERVER_TOKEN_FILE", "token create"))
        train(stream, 3, 6)
        stream.headers[name] = value.strip()
        with pytest.raises(AssertionError, match="came through a proxy"):
            stream.send()
        token = bearer(tokens.create(place.store, "page", ("read",)))
        assert 200 == place.client.get(READ, headers={name: value.strip()} | token).status_code


def test_the_first_token_closes_the_collector(client: httpx.Client, store: Store) -> None:
    token = tokens.create(store, "page", ("read",))
    refused = client.get(READ)
    assert (401, "Bearer") == (refused.status_code, refused.headers["www-authenticate"])
    assert 401 == client.get(READ, headers=bearer("x" * 43)).status_code
    assert 200 == client.get(READ, headers=bearer(token)).status_code


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/", "/static/api.js"])
def test_health_and_the_page_are_open_without_a_token(client: httpx.Client, store: Store, path: str) -> None:
    tokens.create(store, "page", ("read",))
    assert 200 == client.get(path).status_code


@pytest.mark.parametrize("path", ["/metrics", "/metrics/self", "/openapi.json", "/api/v1/incidents", "/api/v1/rules"])
def test_what_tells_of_runs_needs_read(client: httpx.Client, store: Store, path: str) -> None:
    writer, reader = (tokens.create(store, scope, (scope,)) for scope in ("ingest", "read"))
    assert 401 == client.get(path).status_code
    assert 403 == client.get(path, headers=bearer(writer)).status_code
    assert 200 == client.get(path, headers=bearer(reader)).status_code


def test_sending_needs_ingest(client: httpx.Client, store: Store) -> None:
    allowed = {}
    for scope in ("read", "ingest", "admin"):
        stream = Stream(client, headers=bearer(tokens.create(store, scope, (scope,))))
        train(stream, 0, 1)
        try:
            allowed[scope] = stream.send().status_code
        except AssertionError as refused:
            allowed[scope] = 403 if "no scope ingest" in str(refused) else 0
    assert {"read": 403, "ingest": 200, "admin": 200} == allowed


def test_what_people_did_needs_admin(client: httpx.Client, store: Store) -> None:
    reader, owner = (tokens.create(store, scope, (scope,)) for scope in ("read", "admin"))
    assert 401 == client.get("/api/v1/audit").status_code
    assert 403 == client.get("/api/v1/audit", headers=bearer(reader)).status_code
    assert 200 == client.get("/api/v1/audit", headers=bearer(owner)).status_code


@pytest.mark.parametrize(
    "header",
    ["Bearer", "Basic dXNlcjpwYXNz", "Bearer \xff\xfe", "bearer x y z", "Bearer " + "x" * 50_000],
)
def test_a_header_that_holds_no_token_is_refused_and_not_told_again(
    client: httpx.Client, store: Store, header: str
) -> None:
    tokens.create(store, "page", ("read",))
    answer = client.get(READ, headers=[(b"Authorization", header.encode("latin-1"))])
    assert answer.status_code in (400, 401)
    assert len(answer.content) < 500


def test_a_token_that_has_expired_is_unknown(client: httpx.Client, store: Store) -> None:
    token = tokens.create(store, "page", ("read",), expires=time.time_ns() + 300 * 10**6)
    assert 200 == client.get(READ, headers=bearer(token)).status_code
    wait_until(lambda: 401 == client.get(READ, headers=bearer(token)).status_code)
    assert 401 == client.get(READ).status_code


def test_an_address_that_tries_many_tokens_waits_and_locks_no_right_one_out(client: httpx.Client, store: Store) -> None:
    late = tokens.create(store, "late", ("read",))
    tried = [client.get(READ, headers=bearer(f"{number:043}")).status_code for number in range(MAX_GUESSES)]
    assert [401] * MAX_GUESSES == tried
    refused = client.get(READ, headers=bearer("x" * 43))
    assert (429, "guesses") == (refused.status_code, refused.json()["limit"])
    assert 0 < int(refused.headers["retry-after"]) <= WINDOW_SECONDS
    assert 429 == client.get(READ, headers={"Cookie": f"{COOKIE}=made-up"}).status_code
    assert 429 == client.post("/api/v1/session", json={"token": "y" * 43}).status_code
    assert 401 == client.get(READ, headers=bearer(f"{0:043}")).status_code
    assert 200 == client.get(READ, headers=bearer(late)).status_code
    assert 204 == client.post("/api/v1/session", json={"token": late}).status_code
    assert 200 == client.get(READ, headers=bearer("z" * 43)).status_code  # by its session


def test_an_address_that_guesses_locks_out_no_sender(client: httpx.Client, store: Store) -> None:
    token = tokens.create(store, "trainer", ("ingest",))
    for number in range(MAX_GUESSES + 5):
        client.get(READ, headers=bearer(f"{number:043}"))
    stream = Stream(client, headers=bearer(token))
    train(stream, 0, 3)
    assert 200 == stream.send().status_code


def forwarded(client: httpx.Client, token: str, address: str) -> int:
    return client.get(READ, headers=bearer(token) | {"X-Forwarded-For": address}).status_code


@pytest.mark.parametrize("trusted", [(), ("10.0.0.0/8",), ("127.0.0.2",)])
def test_an_address_that_nobody_trusted_says_is_not_believed(tmp_path: Path, trusted: tuple[str]) -> None:
    with serving(tmp_path, token=FILE_TOKEN, trusted_proxies=trusted) as client:
        tried = [forwarded(client, f"{number:043}", f"10.9.8.{number}") for number in range(MAX_GUESSES + 1)]
        assert [401] * MAX_GUESSES + [429] == tried


def test_behind_a_trusted_proxy_each_address_has_guesses_of_its_own(tmp_path: Path) -> None:
    with serving(tmp_path, token=FILE_TOKEN, trusted_proxies=("127.0.0.0/8", "10.0.0.0/8")) as client:
        tried = [forwarded(client, f"{number:043}", "192.0.2.1, 10.9.8.7") for number in range(MAX_GUESSES + 1)]
        assert [401] * MAX_GUESSES + [429] == tried
        assert 401 == forwarded(client, "x" * 43, "192.0.2.2, 10.9.8.7")
        assert 429 == forwarded(client, "y" * 43, "192.0.2.9, 192.0.2.1")  # only what the proxy itself has added
