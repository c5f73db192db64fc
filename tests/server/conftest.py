"""Databases for tests that run on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ammeter_server.db import Store, connect
from ammeter_server.db.tables import baselines, findings, incidents, outbox, runs, streams, totals
from tests.server.databases import migrate, postgresql


@pytest.fixture(scope="module")
def postgresql_url() -> Iterator[str]:
    """A PostgreSQL server of the test file."""
    with postgresql() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def either_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A database without runs, once of each kind."""
    sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'c.db'}" if sqlite else request.getfixturevalue("postgresql_url")
    migrate(url)
    store = connect(url)
    yield store
    with store.writing() as connection:
        for table in (outbox, incidents, findings, streams, runs, totals, baselines):
            connection.execute(table.delete())
    store.close()
