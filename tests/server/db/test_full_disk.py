"""What works on the database while its disk is full: nothing of it is harmed, and all goes on once there is room."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import text, update

from ammeter_server.config.settings import Settings
from ammeter_server.context import AppContext
from ammeter_server.db import Store, StoreFullError, connect, migrations, partitions
from ammeter_server.db.step_tables import DAY_NS, PARTITIONED_TABLES
from ammeter_server.db.tables import runs
from ammeter_server.maintenance import compaction
from ammeter_server.maintenance.compaction import compact
from ammeter_server.maintenance.retention import retain
from ammeter_server.maintenance.worker import MaintenanceWorker
from tests.server.disks import Disk, small_disk
from tests.server.keeping import SCHEMA, Fed, contents, numbers

TODAY = 20_000
FEW_PAGES = 16 * 4096


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path / "disk", "12m") as disk:
        yield disk


@pytest.fixture
def store(disk: Disk) -> Iterator[Store]:
    store = connect(f"sqlite:///{disk.folder / 'collector.db'}")
    migrations.migrate(store)
    yield store
    store.close()


def is_whole(store: Store) -> bool:
    with store.reading() as connection:
        return ["ok"] == list(connection.execute(text("PRAGMA integrity_check")).scalars())


def filled_by(fed: Fed, disk: Disk) -> None:
    """Fills the disk, and the room that is left in the database's own files: until a batch is refused."""
    disk.fill(leave=FEW_PAGES)
    noise = np.random.default_rng(1)

    def feed() -> None:
        for _ in range(1000):
            fed.feed(noise.standard_normal((SCHEMA.width, 500)).astype(np.float32), 500)

    with pytest.raises(AssertionError, match="disk is full"):
        feed()


def test_what_is_committed_is_there_while_the_log_cannot_be_brought_home(store: Store, disk: Disk) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 8000), 200)
    before = contents(fed.views())
    disk.fill()
    with pytest.raises(StoreFullError, match="free space"), store.reading() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    assert before == contents(fed.views())
    disk.free()
    with store.reading() as connection:
        assert 0 == connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0]
    assert before == contents(fed.views())
    assert is_whole(store)


def test_compaction_gives_up_on_a_full_disk_and_is_done_once_there_is_room(
    store: Store, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 6000), 100)
    filled_by(fed, disk)
    before = contents(fed.views())
    monkeypatch.setattr(compaction, "LEASE_NS", 0)
    with pytest.raises(StoreFullError):
        compact(store, fed.run, fed.stream, "keeper")
    assert before == contents(fed.views())
    disk.free()
    assert compact(store, fed.run, fed.stream, "keeper")
    assert before == contents(fed.views())
    assert is_whole(store)


def test_retention_on_a_full_disk_takes_nothing_apart_and_is_done_once_there_is_room(store: Store, disk: Disk) -> None:
    old, new = Fed(store), Fed(store)
    for fed in (old, new):
        fed.feed(numbers(SCHEMA, 3000), 100)
    old.end()
    with store.writing() as connection:
        connection.execute(update(runs).where(runs.c.id == old.run).values(state="ended"))
        for table in PARTITIONED_TABLES:
            connection.execute(update(table).where(table.c.run == old.run).values(day=TODAY - 9))
            connection.execute(update(table).where(table.c.run == new.run).values(day=TODAY))
        connection.exec_driver_sql("UPDATE streams SET last_seen = ? WHERE run = ?", ((TODAY - 9) * DAY_NS, old.run))
    filled_by(new, disk)
    before = contents(new.views())
    settings = Settings(keep_days=3)
    with pytest.raises(StoreFullError):
        retain(store, settings, TODAY)
    assert before == contents(new.views())
    disk.free()
    retain(store, settings, TODAY)
    with store.reading() as connection:
        assert TODAY == partitions.oldest(connection)
    assert before == contents(new.views())
    assert is_whole(store)


def test_the_keeper_says_in_one_line_that_the_disk_is_full(
    store: Store, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 6000), 100)
    filled_by(fed, disk)
    with caplog.at_level(logging.WARNING):
        MaintenanceWorker(AppContext(Settings(), store)).run_round(TODAY * DAY_NS)
    said = [record for record in caplog.records if "compaction" in record.getMessage()]
    assert [None] == [record.exc_info for record in said]
    assert "free space" in said[0].getMessage()
