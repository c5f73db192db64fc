"""Blocks become segments, and every row is read as it was."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select, update

from ammeter.wire import columns as block
from ammeter.wire import frames
from ammeter.wire.columns import ABSENT, View
from ammeter_server.db import Store, run_deletion
from ammeter_server.db import column_codec as packing
from ammeter_server.db.queries import compaction
from ammeter_server.db.queries.steps.rows import latest_views, views
from ammeter_server.db.queries.steps.stream_info import ColumnSelection
from ammeter_server.db.step_tables import chunks, columns, segments
from ammeter_server.db.tables import compaction_leases
from ammeter_server.maintenance.compaction import (
    MIN_SMALL_BLOCKS,
    LeaseLostError,
    compact,
)
from tests.server.keeping import SCHEMA, Fed, contents, database, numbers


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with database(request.param, tmp_path_factory.mktemp("compaction")) as store:
        yield store


def counted(store: Store, fed: Fed) -> dict[str, int]:
    with store.reading() as connection:
        return {
            table.name: connection.execute(
                select(func.count()).select_from(table).where(table.c.run == fed.run)
            ).scalar_one()
            for table in (chunks, segments, columns)
        }


def test_what_was_fed_is_read_again_to_the_last_bit(store: Store) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 9000), 100)
    before = contents(fed.views())
    assert contents(fed.fed) == before
    assert compact(store, fed.run, fed.stream, "me")
    assert {"chunks": 8, "segments": 2, "columns": 4} == counted(store, fed)
    assert before == contents(fed.views())
    fed.feed(numbers(SCHEMA, 700, seed=1), 100)
    fed.end()
    assert compact(store, fed.run, fed.stream, "me")
    assert {"chunks": 0, "segments": 3, "columns": 6} == counted(store, fed)
    assert contents(fed.fed) == contents(fed.views())


def test_parts_of_it_are_read_from_any_step_on_and_of_some_columns(store: Store) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 4500), 100)
    compact(store, fed.run, fed.stream, "me")
    whole = fed.fed[0]
    for first in (0, 1, 4099, 4100, 4101, 4499):
        found = list(views(store, fed.run, fed.stream, first, None, ColumnSelection(("scale",), ("grad.absmax",))))
        assert whole.steps[first:].tolist() == [step for view in found for step in view.steps.tolist()]
        values = np.concatenate([view.stat("grad.absmax") for view in found], axis=1)
        assert whole.stat("grad.absmax")[:, first:].tobytes() == values.tobytes()
        assert {65536.0} == set(np.concatenate([view.scalar("scale") for view in found]).tolist())
    newest = list(latest_views(store, fed.run, fed.stream, 2))
    assert [4400, 4300, 0] == [int(view.steps[0]) for view in newest]


def test_small_batches_become_blocks_and_stay_what_they_were(store: Store) -> None:
    fed = Fed(store)
    for _ in range(3):
        fed.feed(numbers(SCHEMA, MIN_SMALL_BLOCKS, seed=fed.rows), 1)
        compact(store, fed.run, fed.stream, "me")
    assert {"chunks": 3, "segments": 0, "columns": 0} == counted(store, fed)
    assert contents(fed.fed) == contents(fed.views())
    fed.end()
    compact(store, fed.run, fed.stream, "me")
    assert {"chunks": 1, "segments": 0, "columns": 0} == counted(store, fed)
    assert contents(fed.fed) == contents(fed.views())


def test_a_block_of_more_rows_than_a_segment_becomes_several(store: Store) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 100_000), 100_000)
    fed.end()
    compact(store, fed.run, fed.stream, "me")
    assert {"chunks": 0, "segments": 24, "columns": 48} == counted(store, fed)
    assert contents(fed.fed) == contents(fed.views())


def test_columns_that_change_are_read_as_they_were(store: Store) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 50), 10)
    fed.change_columns(frames.Schema((*SCHEMA.scalars, "accuracy"), SCHEMA.stats, SCHEMA.tensors))
    fed.feed(numbers(fed.schema, 5000), 1000)
    compact(store, fed.run, fed.stream, "me")
    assert {"chunks": 0, "segments": 2, "columns": 4} == counted(store, fed)
    assert contents(fed.fed) == contents(fed.views())


def test_steps_with_gaps_keep_them(store: Store) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 10), 10)
    view = fed.fed[0]
    steps = np.cumsum(np.random.default_rng(0).integers(1, 5, 5000)) + 10
    values = np.full((SCHEMA.width, 5000), ABSENT, np.float32)
    values[0] = np.arange(5000)
    thinned = View(SCHEMA, steps, view.times[-1] + steps * 10**9, values)
    fed.fed.append(thinned)
    fed.send(block.pack(thinned))
    compact(store, fed.run, fed.stream, "me")
    assert 1 == counted(store, fed)["segments"]
    assert contents(fed.fed) == contents(fed.views())


def test_a_keeper_that_died_half_way_is_made_up_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 4500), 100)

    def die(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(compaction, "add_segment", die)
        with pytest.raises(ZeroDivisionError):
            compact(store, fed.run, fed.stream, "dies")
    assert {"chunks": 45, "segments": 0, "columns": 2} == counted(store, fed)
    assert contents(fed.fed) == contents(fed.views())
    assert not compact(store, fed.run, fed.stream, "early")
    with store.writing() as connection:
        connection.execute(update(compaction_leases).where(compaction_leases.c.run == fed.run).values(claimed_until=1))
    fed.feed(numbers(SCHEMA, 100, seed=2), 100)
    assert compact(store, fed.run, fed.stream, "late")
    assert {"chunks": 5, "segments": 1, "columns": 2} == counted(store, fed)
    assert contents(fed.fed) == contents(fed.views())


def test_a_keeper_whose_lease_was_taken_over_writes_no_segment(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 4500), 100)
    add = compaction.add_columns

    def slow(connection: object, rows: object) -> None:
        add(connection, rows)  # type: ignore[arg-type]
        other = update(compaction_leases).where(compaction_leases.c.run == fed.run).values(claimed_by="other")
        connection.execute(other)  # type: ignore[attr-defined]

    monkeypatch.setattr(compaction, "add_columns", slow)
    with pytest.raises(LeaseLostError, match="another worker took it over"):
        compact(store, fed.run, fed.stream, "slow")
    assert 0 == counted(store, fed)["segments"]
    assert contents(fed.fed) == contents(fed.views())


def test_a_keeper_leaves_nothing_of_a_run_that_is_deleted_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 4500), 100)
    pack = packing.pack

    def slow(*given: Any) -> Any:
        assert run_deletion.delete(store, fed.run, "an admin", 1)
        return pack(*given)

    monkeypatch.setattr(packing, "pack", slow)
    with pytest.raises(LeaseLostError, match="the run was deleted"):
        compact(store, fed.run, fed.stream, "slow")
    assert {"chunks": 0, "segments": 0, "columns": 0} == counted(store, fed)


def test_several_keepers_and_readers_at_once_see_each_row_once(store: Store) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 2000), 50)
    wrong: list[str] = []
    stop = threading.Event()

    def keep(name: str) -> None:
        while not stop.is_set():
            compact(store, fed.run, fed.stream, name)

    def look() -> None:
        while not stop.is_set():
            steps = [step for view in fed.views() for step in view.steps.tolist()]
            if steps != list(range(len(steps))) or len(steps) < 2000:
                wrong.append(f"{len(steps)} steps")

    threads = [threading.Thread(target=keep, args=(name,)) for name in ("a", "b")]
    threads += [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for seed in range(4):
        fed.feed(numbers(SCHEMA, 1000, seed=seed), 50)
    fed.end()
    stop.set()
    for thread in threads:
        thread.join()
    compact(store, fed.run, fed.stream, "last")
    assert [] == wrong
    assert contents(fed.fed) == contents(fed.views())
    assert 0 == counted(store, fed)["chunks"]


def test_a_stream_that_is_done_is_not_looked_at_again(store: Store) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 2000), 100)

    def is_due() -> bool:
        with store.reading() as connection:
            return fed.stream in [due.id for due in compaction.due(connection, 0, 2**62, MIN_SMALL_BLOCKS)]

    assert is_due()
    fed.end()
    assert is_due()
    compact(store, fed.run, fed.stream, "me")
    assert not is_due()


def test_a_stream_with_nothing_to_do_is_done_when_it_ends(store: Store) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 10), 10)
    assert not compact(store, fed.run, fed.stream, "me")
    fed.end()
    assert not compact(store, fed.run, fed.stream, "me")
    with store.reading() as connection:
        row = connection.execute(select(compaction_leases).where(compaction_leases.c.run == fed.run)).one()
    assert (None, 10, True) == (row.claimed_by, row.rows, row.finished)


def test_a_stream_that_ended_while_a_dead_keeper_had_it_is_cleared_up(store: Store) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 10), 10)
    fed.end()
    key = {"run": fed.run, "stream": fed.stream}
    with store.writing() as connection:
        assert compaction.claim(connection, fed.run, fed.stream, "dead", 1, 2)
        left = {**key, "part": 0, "first_step": 0, "day": 1, "head": b"", "data": b""}
        connection.execute(columns.insert().values(left))
    assert compact(store, fed.run, fed.stream, "me")
    assert {"chunks": 1, "segments": 0, "columns": 0} == counted(store, fed)
    with store.reading() as connection:
        assert connection.execute(
            select(compaction_leases.c.finished).where(compaction_leases.c.run == fed.run)
        ).scalar_one()
