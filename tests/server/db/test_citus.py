"""What would touch one node, and what all of them, if the tables were distributed by run: read off the statements."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from sqlalchemy import Connection, Engine, Table, event
from sqlalchemy.sql import Delete, Insert, Select, Update, visitors
from sqlalchemy.sql.elements import BinaryExpression, BindParameter, ColumnElement
from sqlalchemy.sql.operators import eq, in_op

from ammeter_server.config.settings import Settings
from ammeter_server.db import Store, citus, partitions, run_deletion
from ammeter_server.db.prepared import Prepared
from ammeter_server.db.queries import compaction, incidents, live, metrics, outbox, runs, sizes, streams
from ammeter_server.db.queries import judge as judgements
from ammeter_server.db.step_tables import PARTITIONED_TABLES
from ammeter_server.db.tables import metadata
from ammeter_server.judging.judge import Judge
from ammeter_server.maintenance.compaction import MIN_SMALL_BLOCKS, compact
from tests.server.feeding import Stream, serving, train
from tests.server.keeping import SCHEMA, Fed, database, numbers

BY_RUN = {name for name in metadata.tables if name not in (*citus.REFERENCE_TABLES, *citus.LOCAL_TABLES)}

A_RUN: Any = SimpleNamespace(id="a", project="demo", started=1)

EVERYWHERE: dict[str, Callable[[Connection], Any]] = {
    "runs.newest": lambda c: runs.newest(c, 10, None),
    "runs.by_project": runs.by_project,
    "runs.existing": lambda c: runs.existing(c, ["a", "b", "c"]),
    "incidents.newest": lambda c: incidents.newest(c, 10, None),
    "live.versions": lambda c: live.versions(c, ["a", "b"]),
    "judgements.baseline": lambda c: judgements.baseline(c, A_RUN, "nightly"),
    "days.old_runs": lambda c: partitions.old_runs(c, 1, 10),
    "metrics.marks": lambda c: list(metrics.marks(c, 0, 0)),
    "metrics.with_ids": lambda c: list(metrics.with_ids(c, ["a", "b"])),
    "metrics.incidents_since": lambda c: metrics.incidents_since(c, 0),
    "judgements.due": lambda c: judgements.due(c, 1, 1, 1),
    "outbox.due": lambda c: outbox.due(c, 1),
    "outbox.pending": outbox.pending,
    "streams.runs_of": lambda c: streams.runs_of(c, ["a", "b"]),
    "deletions.of": lambda c: run_deletion.of(c, ["a", "b"]),
    "streams.runs_with_stream": lambda c: streams.runs_with_stream(c, ["a", "b"], "s"),
    "streams.silent": lambda c: streams.silent_streams(c, 1),
    "streams.still": lambda c: streams.stalled_streams(c, 1, 1),
    "streams.back": lambda c: streams.returned_streams(c, 1, "run-lost"),
    "waiting.due": lambda c: compaction.due(c, 0, 1, MIN_SMALL_BLOCKS),
    "days.oldest": partitions.oldest,
    "sizes.by_table": sizes.by_table,
    "sizes.by_day": sizes.by_day,
    "sizes.by_run": lambda c: sizes.by_run(c, 10),
}
"""The statements that every node answers: lists of runs and incidents, a baseline by its name, what a page that watches
several runs asks, /metrics, the workers, storage, and where a stream belongs that this process does not know. No other
may."""

PLACING = ("streams.runs_of", "streams.runs_with_stream", "deletions.of")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with database("sqlite", tmp_path) as store:
        yield store


@contextmanager
def noting(note: Callable[[Connection, Any], None]) -> Iterator[None]:
    """Notes every statement that is run meanwhile, prepared or not, with its connection."""
    run = Prepared._run

    def run_and_note(prepared: Prepared, connection: Connection, *arguments: Any) -> Any:
        note(connection, prepared.statement)
        return run(prepared, connection, *arguments)

    def before(connection: Connection, statement: Any, *_: Any) -> None:
        note(connection, statement)

    event.listen(Engine, "before_execute", before)
    try:
        with patch.object(Prepared, "_run", run_and_note):
            yield
    finally:
        event.remove(Engine, "before_execute", before)


@contextmanager
def statements(store: Store) -> Iterator[list[Any]]:
    """Those that are run meanwhile."""
    seen: list[Any] = []

    def note(connection: Connection, statement: Any) -> None:
        if connection.engine in (store.engine, store.writer) and isinstance(
            statement, Select | Insert | Update | Delete
        ):
            seen.append(statement)

    with noting(note):
        yield seen


def tables_of(statement: Any) -> set[str]:
    return {part.name for part in visitors.iterate(statement) if isinstance(part, Table)}


def is_of_one_run(statement: Any) -> bool:
    """Whether each of its tables that are distributed by run is asked for one run, or is joined to one that is."""
    wanted = tables_of(statement) & BY_RUN
    if isinstance(statement, Insert):
        return True  # a row lies where its run does
    bound, same = set[str](), list[set[str]]()
    for part in visitors.iterate(statement):
        if isinstance(part, BinaryExpression) and part.operator in (eq, in_op):
            sides = [_place(part.left), _place(part.right)]
            named = {side for side in sides if side}
            if len(named) == 2:
                same.append(named)
            elif named and _is_one(part.right):
                bound |= named
    for _ in same:
        bound |= {name for pair in same if pair & bound for name in pair}
    return wanted <= bound


def _is_one(asked: ColumnElement[Any]) -> bool:
    """Whether it stands for one value: it is no list, or one with one."""
    if isinstance(asked, BindParameter):
        return not asked.expanding or len(asked.value or ()) == 1
    listed = [part for part in visitors.iterate(asked) if isinstance(part, BindParameter)]
    return len(listed) == 1 and not tables_of(asked)


def _place(side: ColumnElement[Any]) -> str | None:
    """The table, where the column is what it is distributed by."""
    table = getattr(side, "table", None)
    if not isinstance(table, Table) or table.name not in BY_RUN:
        return None
    return table.name if side.key == citus.DISTRIBUTION_COLUMNS.get(table.name, "run") else None


def test_what_comes_in_is_of_one_run_and_writes_no_reference_table(store: Store) -> None:
    with statements(store) as seen:
        fed = Fed(store)
        fed.feed(numbers(SCHEMA, 50), 10)
        fed.end()
    with statements(store) as placing, store.reading() as connection:
        for name in PLACING:
            EVERYWHERE[name](connection)
    of_placing = {str(statement) for statement in placing}
    assert {str(statement) for statement in seen} >= of_placing  # once per stream, and after what it says of itself
    seen = [statement for statement in seen if str(statement) not in of_placing]
    prepared = [statement.statement for statement in vars(streams).values() if isinstance(statement, Prepared)]
    assert len(seen) > 5
    assert len(prepared) > 2
    assert [] == [str(statement) for statement in (*seen, *prepared) if not is_of_one_run(statement)]
    assert not {name for statement in (*seen, *prepared) for name in tables_of(statement)} & {
        *citus.REFERENCE_TABLES,
        *citus.LOCAL_TABLES,
    }


def test_compaction_is_of_one_run(store: Store) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 2000), 100)
    fed.end()
    with statements(store) as seen:
        compact(store, fed.run, fed.stream, "me")
    assert {"chunks", "columns", "compaction_leases", "segments"} <= {
        name for statement in seen for name in tables_of(statement)
    }
    assert [] == [str(statement) for statement in seen if not is_of_one_run(statement)]


def test_a_judgement_is_of_one_run_but_for_what_is_counted_for_the_fleet(store: Store) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 50), 10)
    judge = Judge(store, Settings(), [])
    with statements(store) as seen:
        assert not judge.judge(fed.run, time.time_ns())
    apart = {"totals", "projects"}
    assert len(seen) > 5
    assert [] == [
        str(statement) for statement in seen if not is_of_one_run(statement) and not tables_of(statement) <= apart
    ]


OF_TENSORS = ("/series?names=loss,grad.norm:head.weight", "/tensors", "/tensors/matrix", "/spectrum", "/what-if")
PAGE = ("", *OF_TENSORS, "/events", "/incidents")


def test_the_page_of_a_run_is_of_one_run(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        stream = Stream(client)
        train(stream, 0, 60)
        stream.send()
        seen = list(_asked(tmp_path, client, stream))
    of_all_runs = {"directives"}  # once a second, beside the batches, like the queue of notifications
    assert [] == [
        str(statement)
        for statement in seen
        if tables_of(statement) & BY_RUN and not tables_of(statement) & of_all_runs and not is_of_one_run(statement)
    ]


def _asked(folder: Path, client: httpx.Client, stream: Stream) -> Iterator[Any]:
    url = f"sqlite:///{folder / 'collector.db'}"
    found: list[Any] = []

    def note(connection: Connection, statement: Any) -> None:
        ours = not threading.current_thread().name.startswith("ammeter-")  # nor those of its workers
        if ours and str(connection.engine.url) == url and isinstance(statement, Select):
            found.append(statement)

    for path in PAGE:
        with noting(note):
            assert 200 == client.get(f"/api/v1/runs/{stream.run}{path}").status_code
    yield from found


@pytest.mark.parametrize("name", sorted(EVERYWHERE))
def test_what_crosses_nodes_is_known_by_name(name: str, store: Store) -> None:
    with statements(store) as seen, store.reading() as connection:
        EVERYWHERE[name](connection)
    assert seen
    assert any(not is_of_one_run(statement) for statement in seen)


def test_tables_are_distributed_by_run_and_colocated_but_for_small_ones_that_every_node_has() -> None:
    said = {name: citus.statement(name) for name in citus.order()}
    assert set(metadata.tables) == set(said)
    assert {"baselines", "projects", "tokens"} == {
        name for name, text in said.items() if "create_reference_table" in text
    }
    assert "SELECT create_distributed_table('runs', 'id', colocate_with => 'default')" == said["runs"]
    by_run = {name for name, text in said.items() if f"('{name}', 'run', colocate_with => 'runs')" in text}
    assert BY_RUN - {"runs"} == by_run
    assert {table.name for table in PARTITIONED_TABLES} <= by_run
    order = citus.order()
    for table in metadata.tables.values():
        for key in table.foreign_keys:
            assert order.index(key.column.table.name) < order.index(table.name)


def test_without_the_extension_nothing_is_distributed(store: Store) -> None:
    with store.writing() as connection:
        assert [] == citus.distribute(connection)
