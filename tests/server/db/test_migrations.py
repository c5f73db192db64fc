"""Every schema is reached from every other, on both databases, and what is in it comes along."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, select, text
from sqlalchemy.exc import IntegrityError

from ammeter.wire.frames import Event
from ammeter_server.__main__ import main
from ammeter_server.db import Store, migrations
from ammeter_server.db.step_tables import day_of, events
from ammeter_server.db.tables import metadata, runs, streams
from ammeter_server.maintenance.compaction import compact
from tests.server.keeping import SCHEMA, Fed, contents, database, numbers


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with database(request.param, tmp_path) as store:
        yield store


def test_schemas_are_reached_down_and_up_again_with_what_is_in_them(store: Store) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 5000), 500)
    compact(store, fed.run, fed.stream, "me")
    fed.send(Event("scale.changed", 5, 7, {"a": 1}))
    before = contents(fed.views())
    migrations.downgrade(store, "0003")
    assert "0003" == migrations.current(store)
    with store.reading() as connection:
        rows = connection.execute(text("SELECT sum(rows), max(last_step) FROM chunks")).one()
        assert (5000, 4999) == tuple(rows)
        assert not {"segments", "columns"} & set(inspect(connection).get_table_names())
    migrations.migrate(store)
    assert before == contents(fed.views())
    with store.reading() as connection:
        (event,) = connection.execute(select(events)).all()
        heard = connection.execute(text("SELECT last_seen FROM streams")).scalar_one()
    assert ("scale.changed", {"a": 1}, day_of(heard)) == (event.name, event.data, event.day)
    compact(store, fed.run, fed.stream, "me")
    assert before == contents(fed.views())


def test_a_database_of_today_gets_external_ids_and_its_streams_go_on(store: Store) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 50), 10)
    migrations.downgrade(store, "0007")
    with store.writing() as connection:
        assert "external_id" not in {column["name"] for column in inspect(connection).get_columns("runs")}
        columns = [column["name"] for column in inspect(connection).get_columns("runs") if column["name"] != "id"]
        names = ", ".join(f'"{name}"' for name in columns)
        connection.execute(text(f"INSERT INTO runs (id, {names}) SELECT 'another', {names} FROM runs"))
    migrations.migrate(store)
    with store.reading() as connection:
        rows = connection.execute(select(runs.c.id, runs.c.external_id)).all()
    assert {(fed.run, fed.run), ("another", "another")} == {tuple(row) for row in rows}
    fed.send(Event("scale.changed", 60, 7, {"a": 1}))
    with store.reading() as connection:
        assert 1 == connection.execute(select(streams.c.events).where(streams.c.run == fed.run)).scalar_one()


def test_labels_of_earlier_runs_are_copied_into_columns(store: Store) -> None:
    facts = {"environment": {"git_commit": "4f2c9e", "driver": "570.86"}, "tags": {"owner": " lena "}}
    with store.writing() as connection:
        for number in range(5):
            connection.execute(runs.insert().values(id=str(number), external_id=str(number), **facts))
        connection.execute(runs.insert().values(id="plain", external_id="plain"))
    migrations.downgrade(store, "0011")
    migrations.migrate(store)
    with store.reading() as connection:
        rows = connection.execute(select(runs.c.id, runs.c.owner, runs.c.git_commit, runs.c.driver)).all()
    expected = {(str(number), "lena", "4f2c9e", "570.86") for number in range(5)} | {("plain", "", "", "")}
    assert expected == {tuple(row) for row in rows}


def test_one_project_has_one_run_of_an_id_and_going_back_keeps_all_runs(store: Store) -> None:
    with store.writing() as connection:
        for run, project in (("a", "ours"), ("b", "theirs")):
            connection.execute(runs.insert().values(id=run, external_id="a", project=project))
    with pytest.raises(IntegrityError), store.writing() as connection:
        connection.execute(runs.insert().values(id="c", external_id="a", project="ours"))
    migrations.downgrade(store, "0007")
    with store.reading() as connection:
        assert ["a", "b"] == connection.execute(text("SELECT id FROM runs ORDER BY id")).scalars().all()
    migrations.migrate(store)
    with store.reading() as connection:
        assert ["a", "b"] == connection.execute(select(runs.c.external_id).order_by(runs.c.id)).scalars().all()


def test_all_the_way_down_nothing_is_left_and_up_again_it_is_as_the_tables_say(store: Store) -> None:
    migrations.downgrade(store, "base")
    with store.reading() as connection:
        assert {"alembic_version"} == set(inspect(connection).get_table_names())
    migrations.migrate(store)
    opts = {"include_name": lambda name, kind, _: kind != "table" or name in metadata.tables}
    with store.reading() as connection:
        assert [] == compare_metadata(MigrationContext.configure(connection, opts=opts), metadata)


def test_going_back_by_command_says_what_is_lost_and_does_it_for_who_is_sure(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["migrate", "--database-url", store.engine.url.render_as_string(hide_password=False), "--back-to", "0002"]
    assert 2 == main(words)
    captured = capsys.readouterr()
    assert "all audit records" in captured.out
    assert "--yes" in captured.err
    assert migrations.newest() == migrations.current(store)
    assert 0 == main([*words, "--yes"])
    assert "0002" == migrations.current(store)
    assert 0 == main(words[:-2])
    assert migrations.newest() == migrations.current(store)


@pytest.mark.parametrize("schema", ["base", "9999", "head", "-1", "'; drop table runs; --"])
def test_there_is_no_way_back_to_a_schema_that_is_no_earlier_one(
    store: Store, schema: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = store.engine.url.render_as_string(hide_password=False)
    assert 2 == main(["migrate", "--database-url", url, f"--back-to={schema}", "--yes"])
    assert "earlier schemas are 0012, 0011" in capsys.readouterr().err
    assert migrations.newest() == migrations.current(store)


def test_every_schema_says_what_going_back_loses() -> None:
    newest = migrations.newest()
    assert newest is not None
    assert int(newest) - 1 == len(migrations.downgrade_losses(newest, "0001"))


def test_collectors_that_bring_up_one_database_at_once_wait_for_each_other(store: Store) -> None:
    migrations.downgrade(store, "base")
    with ThreadPoolExecutor(4) as collectors:
        list(collectors.map(lambda _: migrations.migrate(store), range(4)))
    assert migrations.newest() == migrations.current(store)
