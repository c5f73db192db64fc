"""Every shape is reached from every other, on both databases, and what is in it comes along."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, select, text

from ammeter.wire import Event
from ammeter_server import migrations
from ammeter_server.bulk import day_of, events
from ammeter_server.compaction import compact
from ammeter_server.store import Store
from ammeter_server.tables import metadata
from tests.server.keeping import SCHEMA, Fed, database, numbers, server, told


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    with server(request.param) as url:
        yield url


@pytest.fixture
def store(place: str, tmp_path: Path) -> Iterator[Store]:
    with database(place, tmp_path) as store:
        yield store


def test_shapes_are_reached_down_and_up_again_with_what_is_in_them(store: Store) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 5000), 500)
    compact(store, fed.run, fed.stream, "me")
    fed.send(Event("scale.changed", 5, 7, {"a": 1}))
    before = told(fed.views())
    migrations.go_back(store, "0003")
    assert "0003" == migrations.current(store)
    with store.reading() as connection:
        rows = connection.execute(text("SELECT sum(rows), max(last_step) FROM chunks")).one()
        assert (5000, 4999) == tuple(rows)
        assert not {"segments", "columns"} & set(inspect(connection).get_table_names())
    migrations.migrate(store)
    assert before == told(fed.views())
    with store.reading() as connection:
        (event,) = connection.execute(select(events)).all()
        heard = connection.execute(text("SELECT heard FROM streams")).scalar_one()
    assert ("scale.changed", {"a": 1}, day_of(heard)) == (event.name, event.data, event.day)
    compact(store, fed.run, fed.stream, "me")
    assert before == told(fed.views())


def test_all_the_way_down_nothing_is_left_and_up_again_it_is_as_the_tables_say(store: Store) -> None:
    migrations.go_back(store, "base")
    with store.reading() as connection:
        assert {"alembic_version"} == set(inspect(connection).get_table_names())
    migrations.migrate(store)
    opts = {"include_name": lambda name, kind, _: kind != "table" or name in metadata.tables}
    with store.reading() as connection:
        assert [] == compare_metadata(MigrationContext.configure(connection, opts=opts), metadata)
