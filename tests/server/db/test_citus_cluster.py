"""The collector on a real Citus: a coordinator and two workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from ammeter_server.config.settings import Settings
from ammeter_server.db import Store, StoreAwayError, citus, connect, migrations, partitions, run_deletion
from ammeter_server.db.step_tables import PARTITIONED_TABLES, day_of
from ammeter_server.db.tables import metadata
from ammeter_server.judging.judge import Judge
from ammeter_server.maintenance.compaction import compact
from tests.server.citus_cluster import SHARDS, WORKERS, Cluster, cluster
from tests.server.databases import copied
from tests.server.db.citus_plans import of_several_shards, recorded, shape, tasks
from tests.server.db.test_citus import EVERYWHERE, PAGE, PLACING
from tests.server.feeding import Stream, break_down, serving, train, wait_until
from tests.server.keeping import SCHEMA, Fed, contents, numbers

TODAY = day_of(time.time_ns())


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster() as started:
        store = connect(started.url)
        migrations.migrate(store)
        store.close()
        copied(started.url)
        yield started


@pytest.fixture
def store(running: Cluster) -> Iterator[Store]:
    store = connect(running.url)
    yield store
    store.close()


def placing(store: Store) -> set[str]:
    """The statements with which a stream that a collector does not know is looked up, once."""
    with recorded() as seen:
        other = connect(store.engine.url.render_as_string(hide_password=False))
        with other.reading() as connection:
            for name in PLACING:
                EVERYWHERE[name](connection)
        other.close()
    return {shape(query) for query, _ in seen}


def test_the_tables_are_spread_over_the_workers_by_run(store: Store) -> None:
    names = "SELECT table_name::text, citus_table_type, distribution_column FROM citus_tables"
    nodes = "SELECT count(DISTINCT nodeport) FROM citus_shards WHERE table_name = 'runs'::regclass"
    with store.reading() as connection:
        found = {name: (kind, column) for name, kind, column in connection.execute(text(names))}
        assert WORKERS == connection.execute(text(nodes)).scalar_one()
        assert all(citus.is_distributed(connection, name) for name in metadata.tables)
    assert set(metadata.tables) <= set(found)
    for table in metadata.tables:
        column = citus.DISTRIBUTION_COLUMNS.get(table, "run")
        assert found[table] == (("reference", "<none>") if table in citus.REFERENCE_TABLES else ("distributed", column))
    days = {f"{table.name}_rest" for table in PARTITIONED_TABLES}
    assert days <= set(found)


def test_a_second_migration_changes_nothing(store: Store) -> None:
    migrations.migrate(store)
    with store.writing() as connection:
        assert [] == citus.distribute(connection)


def hot(name: str, run: Callable[[Store, Fed], object]) -> Any:
    return pytest.param(run, id=name)


def ingest(store: Store, fed: Fed) -> None:
    fed.feed(numbers(SCHEMA, 50), 10)


def compacting(store: Store, fed: Fed) -> None:
    fed.feed(numbers(SCHEMA, 2000), 100)
    fed.end()
    assert compact(store, fed.run, fed.stream, "me")


def judging(store: Store, fed: Fed) -> None:
    fed.feed(numbers(SCHEMA, 50), 10)
    assert not Judge(store, Settings(), []).judge(fed.run, time.time_ns())


@pytest.mark.parametrize("work", [hot("ingest", ingest), hot("compaction", compacting), hot("judging", judging)])
def test_each_statement_of_ingest_compaction_and_judging_touches_one_shard(
    work: Callable[[Store, Fed], object], running: Cluster, store: Store
) -> None:
    allowed = placing(store)
    with recorded() as seen:
        recording = connect(running.url)
        work(recording, Fed(recording))
        recording.close()
    assert of_several_shards(running, seen) <= allowed


def test_each_statement_of_the_page_of_a_run_touches_one_shard(running: Cluster, tmp_path: Path) -> None:
    seen = []
    with recorded() as everything, serving(tmp_path, running.url) as client:
        stream = Stream(client)
        train(stream, 0, 60)
        stream.send()
        for path in PAGE:
            before = len(everything)
            assert 200 == client.get(f"/api/v1/runs/{stream.run}{path}").status_code
            seen += everything[before:]
    once_a_second = {name for name in of_several_shards(running, seen) if "directives" in name}
    assert of_several_shards(running, seen) <= once_a_second


@pytest.mark.parametrize("name", sorted(EVERYWHERE))
def test_what_crosses_nodes_works_and_does_cross_them(name: str, running: Cluster) -> None:
    with recorded() as seen:
        store = connect(running.url)
        with store.reading() as connection:
            EVERYWHERE[name](connection)
        store.close()
    assert max(count for query, values in seen for count in tasks(running, query, values)) > 1


def test_what_is_stored_is_what_was_sent_before_and_after_compaction(store: Store) -> None:
    several = [Fed(store) for _ in range(2 * SHARDS)]
    for number, fed in enumerate(several):
        fed.feed(numbers(SCHEMA, 1000, number), 100)
        fed.end()
        assert contents(fed.fed) == contents(fed.views())
        assert compact(store, fed.run, fed.stream, "me")
        assert contents(fed.fed) == contents(fed.views())


def test_a_run_that_breaks_has_one_incident_and_its_page(running: Cluster, tmp_path: Path) -> None:
    with serving(tmp_path, running.url) as client:
        stream = Stream(client, begin=time.time_ns() - 60 * 10**9)
        train(stream, 0, 60)
        stream.send()
        break_down(stream, 61, 75)
        stream.send()
        path = f"/api/v1/runs/{stream.run}"
        wait_until(lambda: client.get(f"{path}/incidents").json()["items"])
        stream.bye(75)
        stream.send()
        wait_until(lambda: client.get(path).json()["state"] == "ended")
        found = [incident["verdict"] for incident in client.get(f"{path}/incidents").json()["items"]]
        assert ["nonfinite-gradient"] == found
        assert stream.run in {run["id"] for run in client.get("/api/v1/runs").json()["items"]}
        for asked in ("/api/v1/incidents", "/metrics", "/metrics/self", "/readyz", f"/runs/{stream.run}"):
            assert 200 == client.get(asked).status_code, asked


def test_days_are_dropped_and_rows_move_into_the_partition_of_their_day(store: Store) -> None:
    later = TODAY + 40
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 20), 20)
    with store.writing() as connection:
        row = (
            connection.execute(text("SELECT * FROM chunks WHERE run = :run LIMIT 1"), {"run": fed.run}).mappings().one()
        )
        chunks = metadata.tables["chunks"]
        connection.execute(chunks.insert().values({**row, "day": later, "first_step": 10_000, "last_step": 10_019}))
    assert days(store, "chunks_rest", fed.run) == [later]
    assert partitions.prepare(store, later)
    assert days(store, "chunks_rest", fed.run) == []
    assert days(store, "chunks", fed.run) == [TODAY, later]
    with store.reading() as connection:
        assert partitions.oldest(connection) == TODAY
    assert partitions.drop(store, TODAY + 1)
    assert days(store, "chunks", fed.run) == [later]
    assert partitions.drop(store, later + 1)
    assert days(store, "chunks", fed.run) == []
    migrations.migrate(store)  # makes today's partitions again


def days(store: Store, table: str, run: str) -> list[int]:
    with store.reading() as connection:
        found = connection.execute(
            text(f"SELECT DISTINCT day FROM {table} WHERE run = :run ORDER BY day"), {"run": run}
        )
        return list(found.scalars())


def test_rows_of_the_partition_rest_are_deleted_by_day(store: Store) -> None:
    fed = Fed(store)
    with store.writing() as connection:
        chunk = {"run": fed.run, "stream": fed.stream, "rows": 1, "columns": 1, "schema": "s", "received": 0}
        chunk |= {"first_time": 0, "last_time": 0, "data": b"", "first_step": 0, "last_step": 0, "day": 3}
        connection.execute(metadata.tables["chunks"].insert().values(chunk))
    assert days(store, "chunks_rest", fed.run) == [3]
    assert partitions.drop(store, 4)
    assert days(store, "chunks_rest", fed.run) == []


def test_the_size_of_the_database_is_that_of_all_nodes(running: Cluster, store: Store) -> None:
    sizes = []
    for server in (running.coordinator, *running.workers):
        with psycopg.connect(server.url) as connection:
            (size,) = connection.execute("SELECT pg_database_size(current_database())").fetchone() or (0,)
            sizes.append(size)
    with store.reading() as connection:
        assert partitions.used_bytes(connection) > max(sizes) + min(sizes)


def test_a_deleted_run_leaves_nothing_on_any_node(store: Store) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 100), 10)
    fed.end()
    assert run_deletion.delete(store, fed.run, "me", time.time_ns())
    with store.reading() as connection:
        for table in metadata.sorted_tables:
            if "run" in table.columns and table.name != "deleted_runs":
                assert [] == connection.execute(table.select().where(table.c.run == fed.run)).all(), table.name
        assert run_deletion.is_deleted(connection, fed.run)


def test_while_a_worker_is_down_runs_on_others_go_on_and_none_loses_a_step(running: Cluster, store: Store) -> None:
    several = [Fed(store) for _ in range(4 * SHARDS)]
    for fed in several:  # an unknown stream is looked up on all nodes; from its first rows on it is known
        fed.feed(numbers(SCHEMA, 20), 10)
    running.workers[0].kill()
    try:
        waiting = [fed for number, fed in enumerate(several) if not accepts(fed, number)]
    finally:
        running.workers[0].start(with_worker=True)
    assert 0 < len(waiting) < len(several)
    for fed in several:
        fed.feed(numbers(SCHEMA, 20, 1), 10)
        assert contents(fed.fed) == contents(fed.views())


def accepts(fed: Fed, number: int) -> bool:
    """Whether the stream's next rows are stored; otherwise the answer is one after which a shipper sends them again."""
    try:
        fed.feed(numbers(SCHEMA, 20, number), 20)
    except AssertionError as refused:
        (answer,) = refused.args
        assert isinstance(answer, StoreAwayError)
        return False
    return True
