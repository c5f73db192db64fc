from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from sqlalchemy import select, update

from ammeter_server.auth import login, tokens
from ammeter_server.auth.callers import CHANGE_HEADER, COOKIE
from ammeter_server.db import Store
from ammeter_server.db.queries import audit
from ammeter_server.db.tables import tokens as table
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


def sign_in(client: httpx.Client, token: str) -> httpx.Response:
    return client.post("/api/v1/session", json={"token": token})


def test_the_page_signs_in_with_a_token_once(client: httpx.Client, store: Store) -> None:
    token = tokens.create(store, "page", ("read",))
    answer = sign_in(client, token)
    cookie = answer.headers["set-cookie"]
    assert 204 == answer.status_code
    assert all(part in cookie for part in ("HttpOnly", "SameSite=strict", "Max-Age="))
    assert token not in cookie
    assert 200 == client.get(READ).status_code
    assert 204 == client.delete("/api/v1/session").status_code
    assert 401 == client.get(READ).status_code


def test_a_session_neither_writes_nor_passes_for_a_token(client: httpx.Client, store: Store) -> None:
    sign_in(client, tokens.create(store, "all", ("admin",)))
    cookie = client.cookies[COOKIE]
    stream = Stream(client)
    train(stream, 0, 1)
    with pytest.raises(AssertionError, match="no scope ingest"):
        stream.send()
    client.cookies.clear()
    assert 401 == client.get(READ, headers=bearer(cookie)).status_code
    assert 401 == sign_in(client, cookie).status_code


def test_a_signed_in_browser_proves_that_a_change_is_its_own(client: httpx.Client, store: Store) -> None:
    token = tokens.create(store, "page", ("read",))
    sign_in(client, token)
    path = "/api/v1/incidents/no.such.1/acknowledge"
    refused = client.post(path)
    assert 403 == refused.status_code
    assert CHANGE_HEADER in refused.json()["detail"]
    assert 404 == client.post(path, headers={CHANGE_HEADER: "page"}).status_code
    client.cookies.clear()
    assert 404 == client.post(path, headers=bearer(token)).status_code


def test_a_session_ends_in_time(client: httpx.Client, store: Store) -> None:
    sign_in(client, tokens.create(store, "page", ("read",)))
    with store.writing() as connection:
        connection.execute(update(table).where(table.c.expires.is_not(None)).values(expires=1))
    assert 401 == client.get(READ).status_code


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, b""),
        (400, b"[]"),
        (400, b'{"token": 5}'),
        (400, b'{"token": "\\ud800"}'),
        (401, b'{"token": "unknown"}'),
        (413, b" " * 5000),
    ],
)
def test_a_sign_in_that_cannot_be_is_refused(client: httpx.Client, status: int, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    assert status == client.post("/api/v1/session", content=body, headers=headers).status_code


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_form_of_another_site_signs_nobody_in(client: httpx.Client, store: Store, kind: str) -> None:
    body = msgspec.json.encode({"token": tokens.create(store, "page", ("read",)), "x": "="})
    answer = client.post("/api/v1/session", content=body, headers={"Content-Type": kind})
    assert (415, None) == (answer.status_code, answer.headers.get("set-cookie"))


def test_a_token_that_signs_in_in_a_loop_fills_no_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "BURST_SIGN_INS", 2.0)
    monkeypatch.setattr(login, "SIGN_INS_PER_SECOND", 0.0)
    with guarded(tmp_path) as place:
        token, other = (tokens.create(place.store, name, ("read",)) for name in ("page", "other"))
        answers = [sign_in(place.client, token) for _ in range(4)]
        assert [204, 204, 429, 429] == [answer.status_code for answer in answers]
        assert "sign-ins" == answers[-1].json()["limit"]
        assert 204 == sign_in(place.client, other).status_code
        with place.store.reading() as connection:
            assert 3 == sum(row.action == "session.opened" for row in audit.newest(connection, 100))


def test_a_made_up_session_is_signed_out_without_a_turn_of_those_who_write(client: httpx.Client, store: Store) -> None:
    with store.writing():
        answer = client.delete("/api/v1/session", headers={"Cookie": f"{COOKIE}=made up"}, timeout=5)
    assert 204 == answer.status_code


def test_tokens_are_kept_as_hashes(client: httpx.Client, store: Store) -> None:
    token = tokens.create(store, "page", ("read",))
    sign_in(client, token)
    with store.reading() as connection:
        kept = str(connection.execute(select(table)).all())
    assert token not in kept
    assert client.cookies[COOKIE] not in kept


def test_a_session_ends_with_its_token(client: httpx.Client, store: Store) -> None:
    sign_in(client, tokens.create(store, "page", ("read",)))
    other = httpx.Client(base_url=client.base_url)
    with other:
        sign_in(other, tokens.create(store, "page of another", ("read",)))
        tokens.revoke(store, "page")
        assert 401 == client.get(READ).status_code
        assert 200 == other.get(READ).status_code


def test_a_token_has_so_many_sessions_and_the_oldest_go(
    client: httpx.Client, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "MAX_SESSIONS", 2)
    token = tokens.create(store, "page", ("read",))
    cookies = []
    for _ in range(3):
        client.cookies.clear()
        sign_in(client, token)
        cookies.append(client.cookies[COOKIE])
    client.cookies.clear()
    asked = [client.get(READ, headers={"Cookie": f"{COOKIE}={cookie}"}).status_code for cookie in cookies]
    assert [401, 200, 200] == asked
    assert 200 == client.get(READ, headers=bearer(token)).status_code


def test_a_session_lasts_no_longer_than_its_token(client: httpx.Client, store: Store) -> None:
    sign_in(client, tokens.create(store, "page", ("read",), expires=time.time_ns() + 300 * 10**6))
    wait_until(lambda: 401 == client.get(READ).status_code)


def test_a_changed_token_file_ends_the_sessions_of_the_one_before(tmp_path: Path) -> None:
    with serving(tmp_path, token=FILE_TOKEN) as client:
        sign_in(client, FILE_TOKEN)
        cookie = client.cookies[COOKIE]
        assert 200 == client.get(READ).status_code
    for token, status in ((FILE_TOKEN, 200), ("g" * 40, 401)):
        with serving(tmp_path, token=token) as client:
            assert status == client.get(READ, headers={"Cookie": f"{COOKIE}={cookie}"}).status_code


def test_behind_tls_the_cookie_is_for_tls_only(tmp_path: Path) -> None:
    with serving(tmp_path, token=FILE_TOKEN, public_url="https://ammeter.example") as client:
        assert "Secure" in sign_in(client, FILE_TOKEN).headers["set-cookie"]
    with serving(tmp_path, token=FILE_TOKEN) as client:
        assert "Secure" not in sign_in(client, FILE_TOKEN).headers["set-cookie"]
