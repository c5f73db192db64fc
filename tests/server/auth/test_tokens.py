from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Barrier

import pytest
from sqlalchemy import select

from ammeter_server.auth import tokens
from ammeter_server.auth.tokens import TokenError
from ammeter_server.config.settings import Settings
from ammeter_server.db import Store, connect, migrations
from ammeter_server.db.queries import audit
from ammeter_server.db.queries import tokens as query
from ammeter_server.db.tables import tokens as table
from tests.server.callers import bearer
from tests.server.databases import postgresql
from tests.server.feeding import serving

READ = "/api/v1/runs"
FILE_TOKEN = "f" * 40


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = connect(f"sqlite:///{tmp_path / 'collector.db'}")
    migrations.migrate(store)
    yield store
    store.close()


def known(store: Store, token: str) -> bool:
    with store.reading() as connection:
        return query.find(connection, tokens.fingerprint(token), time.time_ns()) is not None


def test_two_tokens_are_never_the_same_and_hold_256_bits(store: Store) -> None:
    made = {tokens.create(store, f"token {number}", ("read",)) for number in range(20)}
    assert {43} == {len(token) for token in made}
    assert 20 == len(made)


@pytest.mark.parametrize("name", ["", "  ", "x" * 201, "a\nb", "\u202eevil", "\x1b[2J", "a\x00", "token file"])
def test_a_name_that_would_mislead_is_refused(store: Store, name: str) -> None:
    with pytest.raises(TokenError, match="use 1 to 200 printable characters"):
        tokens.create(store, name, ("read",))
    with pytest.raises(TokenError):
        tokens.create(store, f"session of {name}", ("read",))


@pytest.mark.parametrize("project", ["", "  ", "x" * 1025, "a\nb", "\u202eevil", "a\x00"])
def test_a_project_that_is_none_makes_no_token_of_every_project(store: Store, project: str) -> None:
    with pytest.raises(TokenError, match="omit it for every project"):
        tokens.create(store, "trainers", ("ingest",), project)
    assert [] == list(tokens.listed(store))


def test_a_name_is_given_once(store: Store) -> None:
    first = tokens.create(store, "grafana", ("read",))
    with pytest.raises(TokenError, match="there is a token 'grafana' already"):
        tokens.create(store, "grafana", ("admin",))
    assert known(store, first)


def test_a_revoked_token_is_unknown_and_its_name_is_free(store: Store) -> None:
    first, other = (tokens.create(store, name, ("read",)) for name in ("grafana", "other"))
    tokens.revoke(store, "grafana")
    assert (False, True) == (known(store, first), known(store, other))
    assert known(store, tokens.create(store, "grafana", ("read",)))


def test_one_that_is_not_there_cannot_be_revoked_and_those_there_are_are_named(store: Store) -> None:
    tokens.create(store, "grafana", ("read",))
    with pytest.raises(TokenError, match="there is no token 'grafanna'; there are 'grafana'"):
        tokens.revoke(store, "grafanna")


def test_the_token_file_is_valid_and_a_changed_one_replaces_it(tmp_path: Path) -> None:
    for token in (FILE_TOKEN, "g" * 40):
        with serving(tmp_path, token=token) as client:
            assert 200 == client.get(READ, headers=bearer(token)).status_code
            assert 401 == client.get(READ).status_code
    with serving(tmp_path, token="g" * 40) as client:
        assert 401 == client.get(READ, headers=bearer(FILE_TOKEN)).status_code


def test_loading_a_token_file_twice_is_fine_and_is_noted_once(store: Store) -> None:
    for _ in range(2):
        tokens.load_file(Settings(token=FILE_TOKEN), store)
    with store.reading() as connection:
        assert 1 == len(connection.execute(select(table)).all())
        assert ["token.replaced"] == [entry.action for entry in audit.newest(connection, 10)]


def test_several_collectors_may_load_the_same_token_file_at_once() -> None:
    with postgresql() as url, ExitStack() as stack:
        stores = [stack.enter_context(closing(connect(url))) for _ in range(4)]
        barrier = Barrier(len(stores))

        def load(store: Store) -> None:
            barrier.wait(30)
            tokens.load_file(Settings(token=FILE_TOKEN), store)

        with ThreadPoolExecutor(len(stores)) as threads:
            list(threads.map(load, stores))
        assert ["token file"] == [token.name for token in tokens.listed(stores[0])]


def test_a_file_with_a_token_that_was_made_by_hand_takes_it_over(store: Store) -> None:
    token = tokens.create(store, "grafana", ("read",))
    tokens.load_file(Settings(token=token), store)
    assert ["token file"] == [token.name for token in tokens.listed(store)]


def test_a_sessions_secret_and_a_tokens_are_never_the_same_row() -> None:
    assert tokens.fingerprint("x") != tokens.fingerprint("x", "session")
