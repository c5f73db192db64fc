"""A description that was rendered before is used only as long as nothing of it has changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import update

from ammeter_server.api.runs import read_run
from ammeter_server.config.settings import Settings
from ammeter_server.context import AppContext
from ammeter_server.db import Store
from ammeter_server.db.tables import runs
from tests.server.keeping import SCHEMA, Fed, database, numbers


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with database("sqlite", tmp_path) as store:
        yield store


@pytest.mark.parametrize(
    ("column", "value", "shown"),
    [
        ("state", "lost", "lost"),
        ("started", 10**18, "2001-09-09T01:46:40.000Z"),
        ("ended", 10**18, "2001-09-09T01:46:40.000Z"),
    ],
)
def test_a_change_of_the_run_alone_is_shown(store: Store, column: str, value: Any, shown: str) -> None:
    """No stream changes, as when the judge declares a silent run lost."""
    context, fed = AppContext(Settings(), store), Fed(store)
    fed.feed(numbers(SCHEMA, 20), 20)

    def described() -> dict[str, Any]:
        return dict(msgspec.json.decode(read_run(context, fed.run).body))

    before = described()
    assert before == described()
    with store.writing() as connection:
        connection.execute(update(runs).where(runs.c.id == fed.run).values({column: value}))
    assert before | {column: shown} == described()
