"""Statements passed to the driver return what SQLAlchemy returns for the same statement."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Select, bindparam, literal_column, or_, select, text

from ammeter_server.db import Store, StoreAwayError
from ammeter_server.db.errors import DatabaseError
from ammeter_server.db.prepared import Prepared, PreparedList
from ammeter_server.db.tables import runs, streams
from tests.server.judged_runs import add_run, add_stream

COUNTS = (1, 2, 3, 4, 5, 33)


@pytest.fixture
def store(either_store: Store) -> Store:
    return either_store


def test_rows_have_the_names_and_types_of_their_columns(store: Store) -> None:
    run = add_run(store, tags={"team": "speech"}, name="gpt")
    stream = add_stream(store, run)
    query = select(streams.c.id, streams.c.alive, streams.c.latest, streams.c.bye, runs.c.tags)
    query = query.where(streams.c.run == runs.c.id, runs.c.id == bindparam("of_run"))
    with store.reading() as connection:
        (expected,) = connection.execute(query, {"of_run": run})
        (row,) = Prepared(query).named(connection, {"of_run": run})
    assert expected._mapping == row._asdict()
    assert (stream, {"team": "speech"}, {}) == (row.id, row.tags, row.bye)
    assert isinstance(row.alive, bool)


def test_constants_of_the_statement_need_no_value_and_none_is_taken_for_a_missing_one(store: Store) -> None:
    run = add_run(store)
    wanted = or_(runs.c.state == "running", runs.c.world_size > 10**6)
    query = Prepared(select(runs.c.id).where(wanted, runs.c.started >= bindparam("of_since")))
    with store.reading() as connection:
        assert [(run,)] == query.all(connection, {"of_since": 0})
        assert [] == query.all(connection, {"of_since": 2**62})
        with pytest.raises(KeyError if store.is_sqlite else Exception, match="of_since"):
            query.all(connection, {})


@pytest.mark.parametrize("count", COUNTS)
def test_a_list_of_any_length_finds_each_of_its_rows_once(store: Store, count: int) -> None:
    ids = [add_run(store) for _ in range(max(COUNTS) + 1)]
    query = PreparedList(lambda of: select(runs.c.id).where(runs.c.id.in_(of)).order_by(runs.c.id))
    with store.reading() as connection:
        found = query.all(connection, ids[:count], {})
        assert sorted(ids[:count]) == [run for (run,) in found]
        assert found == query.named(connection, ids[:count], {})
        assert [] == query.all(connection, [], {})


def test_a_list_is_compiled_once_for_lengths_up_to_the_same_power_of_two(store: Store) -> None:
    built: list[int] = []

    def build(items: Any) -> Select[Any]:
        built.append(len(items))
        return select(runs.c.id).where(runs.c.id.in_(items))

    query = PreparedList(build)
    with store.reading() as connection:
        for count in range(1, 10):
            query.all(connection, ["a"] * count, {})
    assert [1, 2, 4, 8, 16] == built


def test_prepared_statements_of_a_transaction_see_one_moment(store: Store) -> None:
    query = Prepared(select(runs.c.id))
    with store.reading() as connection:
        assert connection.in_transaction() is False
        assert [] == query.all(connection, {})
        assert connection.in_transaction()
        add_run(store)
        if (
            store.is_sqlite
        ):  # PostgreSQL shows the commit of another transaction unless the isolation is repeatable read
            assert [] == query.all(connection, {})
    with store.reading() as connection:
        assert 1 == len(query.all(connection, {}))


def test_an_error_at_a_later_row_is_one_of_the_database(store: Store) -> None:
    rows = "SELECT 1 AS name UNION ALL SELECT 2"
    name = "CAST(x'ff' AS TEXT)" if store.is_sqlite else "CAST(1 / (2 - name) AS TEXT)"
    query = Prepared(
        select(literal_column(f"CASE WHEN name = 1 THEN 'a' ELSE {name} END")).select_from(text(f"({rows}) AS some"))
    )
    with store.reading() as connection, pytest.raises(DatabaseError):
        assert query.all(connection, {})


def test_a_broken_connection_is_not_used_again_and_its_reason_is_kept(store: Store) -> None:
    if store.is_sqlite:
        pytest.skip("SQLite has no connection that breaks")
    ended = Prepared(select(literal_column("pg_terminate_backend(pg_backend_pid())")))
    with pytest.raises(StoreAwayError) as raised, store.reading() as connection:
        ended.all(connection, {})
    assert "terminating connection" in raised.value.reason
    with store.reading() as connection:
        assert [] == Prepared(select(runs.c.id)).all(connection, {})
