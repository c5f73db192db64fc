from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select, update

from ammeter_server import auth
from ammeter_server.settings import Settings
from ammeter_server.store import Store, connect
from ammeter_server.tables import tokens
from tests.server.feeding import Stream, serving, train

READ = "/api/v1/runs"
FILE_TOKEN = "f" * 40


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path) as client:
        yield client


@pytest.fixture
def store(client: httpx.Client, tmp_path: Path) -> Iterator[Store]:
    store = connect(f"sqlite:///{tmp_path / 'collector.db'}")
    yield store
    store.close()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


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
    token = auth.create_token(store, "page", ("read",))
    refused = client.get(READ)
    assert (401, "Bearer") == (refused.status_code, refused.headers["www-authenticate"])
    assert 401 == client.get(READ, headers=bearer("x" * 43)).status_code
    assert 200 == client.get(READ, headers=bearer(token)).status_code


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/", "/static/api.js"])
def test_health_and_the_page_are_open_without_a_token(client: httpx.Client, store: Store, path: str) -> None:
    auth.create_token(store, "page", ("read",))
    assert 200 == client.get(path).status_code


@pytest.mark.parametrize("path", ["/metrics", "/metrics/self", "/openapi.json", "/api/v1/incidents", "/api/v1/rules"])
def test_what_tells_of_runs_needs_read(client: httpx.Client, store: Store, path: str) -> None:
    writer, reader = (auth.create_token(store, scope, (scope,)) for scope in ("ingest", "read"))
    assert 401 == client.get(path).status_code
    assert 403 == client.get(path, headers=bearer(writer)).status_code
    assert 200 == client.get(path, headers=bearer(reader)).status_code


def test_sending_needs_ingest(client: httpx.Client, store: Store) -> None:
    allowed = {}
    for scope in ("read", "ingest", "admin"):
        stream = Stream(client, headers=bearer(auth.create_token(store, scope, (scope,))))
        train(stream, 0, 1)
        try:
            allowed[scope] = stream.send().status_code
        except AssertionError as refused:
            allowed[scope] = 403 if "no scope ingest" in str(refused) else 0
    assert {"read": 403, "ingest": 200, "admin": 200} == allowed


def sign_in(client: httpx.Client, token: str) -> httpx.Response:
    return client.post("/api/v1/session", json={"token": token})


def test_the_page_signs_in_with_a_token_once(client: httpx.Client, store: Store) -> None:
    token = auth.create_token(store, "page", ("read",))
    answer = sign_in(client, token)
    cookie = answer.headers["set-cookie"]
    assert 204 == answer.status_code
    assert all(part in cookie for part in ("HttpOnly", "SameSite=strict", "Max-Age="))
    assert token not in cookie
    assert 200 == client.get(READ).status_code
    assert 204 == client.delete("/api/v1/session").status_code
    assert 401 == client.get(READ).status_code


def test_a_session_neither_writes_nor_passes_for_a_token(client: httpx.Client, store: Store) -> None:
    sign_in(client, auth.create_token(store, "all", ("admin",)))
    cookie = client.cookies[auth.COOKIE]
    stream = Stream(client)
    train(stream, 0, 1)
    with pytest.raises(AssertionError, match="no scope ingest"):
        stream.send()
    client.cookies.clear()
    assert 401 == client.get(READ, headers=bearer(cookie)).status_code
    assert 401 == sign_in(client, cookie).status_code


def test_a_signed_in_browser_proves_that_a_change_is_its_own(client: httpx.Client, store: Store) -> None:
    token = auth.create_token(store, "page", ("read",))
    sign_in(client, token)
    path = "/api/v1/incidents/no.such.1/acknowledge"
    refused = client.post(path)
    assert 403 == refused.status_code
    assert auth.CHANGE_HEADER in refused.json()["detail"]
    assert 404 == client.post(path, headers={auth.CHANGE_HEADER: "page"}).status_code
    client.cookies.clear()
    assert 404 == client.post(path, headers=bearer(token)).status_code


def test_a_session_ends_in_time(client: httpx.Client, store: Store) -> None:
    sign_in(client, auth.create_token(store, "page", ("read",)))
    with store.writing() as connection:
        connection.execute(update(tokens).where(tokens.c.expires.is_not(None)).values(expires=1))
    assert 401 == client.get(READ).status_code


@pytest.mark.parametrize(
    ("status", "body"),
    [(400, b""), (400, b"[]"), (400, b'{"token": 5}'), (401, b'{"token": "unknown"}'), (413, b" " * 5000)],
)
def test_a_sign_in_that_cannot_be_is_refused(client: httpx.Client, status: int, body: bytes) -> None:
    assert status == client.post("/api/v1/session", content=body).status_code


def test_tokens_are_kept_as_hashes(client: httpx.Client, store: Store) -> None:
    token = auth.create_token(store, "page", ("read",))
    sign_in(client, token)
    with store.reading() as connection:
        kept = str(connection.execute(select(tokens)).all())
    assert token not in kept
    assert client.cookies[auth.COOKIE] not in kept


def test_the_token_file_is_valid_and_a_changed_one_replaces_it(tmp_path: Path) -> None:
    for token in (FILE_TOKEN, "g" * 40):
        with serving(tmp_path, token=token) as client:
            assert 200 == client.get(READ, headers=bearer(token)).status_code
            assert 401 == client.get(READ).status_code
    with serving(tmp_path, token="g" * 40) as client:
        assert 401 == client.get(READ, headers=bearer(FILE_TOKEN)).status_code


def test_loading_a_token_file_twice_is_fine(tmp_path: Path, store: Store) -> None:
    for _ in range(2):
        auth.load_token_file(Settings(token=FILE_TOKEN), store)
    with store.reading() as connection:
        assert 1 == len(connection.execute(select(tokens)).all())
