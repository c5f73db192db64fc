from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.requests import HTTPConnection

from ammeter_server.app import create_app
from ammeter_server.auth import tokens
from ammeter_server.config.settings import Settings
from ammeter_server.db import Store, migrations
from ammeter_server.http.problems import Problem
from ammeter_server.ingest import endpoint
from ammeter_server.ingest.endpoint import TOKEN_CACHE_SECONDS, TokenCache


@pytest.fixture
def app(tmp_path: Path) -> Iterator[FastAPI]:
    app = create_app(Settings(database_url=f"sqlite:///{tmp_path / 'collector.db'}"))
    migrations.migrate(app.state.context.store)
    yield app
    app.state.context.store.close()


@pytest.fixture
def store(app: FastAPI) -> Store:
    found: Store = app.state.context.store
    return found


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def asks(known: TokenCache, app: FastAPI, token: str, host: str = "localhost") -> str:
    """The name of whoever is let in, or the status of the refusal."""
    headers = [(b"host", host.encode()), (b"authorization", f"Bearer {token}".encode())]
    connection = HTTPConnection({"type": "http", "app": app, "headers": headers, "client": ("127.0.0.1", 1)})
    try:
        return asyncio.run(known.caller(connection)).name
    except Problem as refused:
        return str(refused.status)


def test_a_revoked_token_writes_for_a_second_and_no_longer(app: FastAPI, store: Store) -> None:
    clock = Clock()
    known = TokenCache(clock)
    token = tokens.create(store, "trainer", ("ingest",))
    tokens.create(store, "page", ("read",))
    assert "trainer" == asks(known, app, token)
    tokens.revoke(store, "trainer")
    clock.now = 0.99 * TOKEN_CACHE_SECONDS
    assert "trainer" == asks(known, app, token)
    clock.now = 1.01 * TOKEN_CACHE_SECONDS
    assert "401" == asks(known, app, token)


def test_a_token_that_expires_within_the_second_is_asked_again(
    app: FastAPI, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, expires = TokenCache(Clock()), time.time_ns() + 3600 * 10**9
    token = tokens.create(store, "trainer", ("ingest",), expires=expires)
    assert "trainer" == asks(known, app, token)
    monkeypatch.setattr("time.time_ns", lambda: expires)
    assert "401" == asks(known, app, token)


def test_a_token_that_was_let_in_opens_no_door_to_another_nor_to_another_name(app: FastAPI, store: Store) -> None:
    known = TokenCache(Clock())
    assert "anybody" == asks(known, app, "")
    assert "421" == asks(known, app, "", host="evil.example")
    token = tokens.create(store, "trainer", ("ingest",))
    reader = tokens.create(store, "page", ("read",))
    assert ["trainer", "403", "401"] == [asks(known, app, secret) for secret in (token, reader, "x" * 43)]


def test_what_is_remembered_does_not_grow_with_what_stands_around_a_token(app: FastAPI, store: Store) -> None:
    known = TokenCache(Clock())
    token = tokens.create(store, "trainer", ("ingest",))
    assert "trainer" == asks(known, app, " " * 50_000 + token, "x" * 10_000)
    assert max(map(len, known._callers)) < 100


def test_only_so_many_are_remembered(app: FastAPI, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_CACHED_TOKENS", 1)
    known = TokenCache(Clock())
    one, other = (tokens.create(store, name, ("ingest",)) for name in ("one", "other"))
    assert ["one", "other"] == [asks(known, app, one), asks(known, app, other)]
    tokens.revoke(store, "one")
    assert ["401", "other"] == [asks(known, app, one), asks(known, app, other)]
