from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ammeter_server import tokens
from ammeter_server.guesses import MOST, WINDOW
from ammeter_server.store import Store
from tests.server.callers import Guarded, bearer, guarded
from tests.server.feeding import Stream, serving, train, wait_until

READ = "/api/v1/runs"


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


def test_the_public_name_is_answered(tmp_path: Path) -> None:
    with serving(tmp_path, public_url="https://ammeter.example") as client:
        assert 200 == client.get(READ, headers={"Host": "ammeter.example"}).status_code


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


def test_who_tries_many_tokens_is_not_heard_and_shuts_nobody_out(client: httpx.Client, store: Store) -> None:
    first, late = (tokens.create(store, name, ("read",)) for name in ("first", "late"))
    assert 200 == client.get(READ, headers=bearer(first)).status_code
    tried = [client.get(READ, headers=bearer(f"{number:043}")).status_code for number in range(MOST)]
    assert [401] * MOST == tried
    refused = client.get(READ, headers=bearer(late))
    assert (429, "guesses") == (refused.status_code, refused.json()["limit"])
    assert 0 < int(refused.headers["retry-after"]) <= WINDOW
    assert 429 == client.post("/api/v1/session", json={"token": late}).status_code
    assert 200 == client.get(READ, headers=bearer(first)).status_code
    assert 401 == client.get(READ, headers=bearer(f"{0:043}")).status_code
