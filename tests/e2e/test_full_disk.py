"""A full database disk: senders receive 507 and keep their data, readers get answers, and all resumes once there is
room, without a restart or a repair."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from ammeter_server.db import connect, migrations
from tests.e2e import stored
from tests.e2e.processes import Collector, wait_for
from tests.e2e.recorded_streams import (
    RecordedStream,
    Sender,
    all_at_once,
    collector_client,
    holds_what_was_sent,
    written,
)
from tests.server.databases import PostgreSQL, folder_of_its_own
from tests.server.disks import Disk, small_disk

pytestmark = pytest.mark.long

LEFT = 16 * 2**10
"""Bytes that are left on the disk: more than none, and less than a database needs to go on for long."""

PAGES = ("", "/series?names=loss", "/events", "/incidents", "/tensors")


@dataclass(frozen=True)
class Place:
    """A collector whose database has little room. fill() takes what there is of it, free() gives it back."""

    collector: Collector
    fill: Callable[[], None]
    free: Callable[[], None]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[RecordedStream]:
    return written(tmp_path_factory.mktemp("journals"))[12:]


@pytest.fixture(params=["sqlite", "sqlite under a limit", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    ways = {"sqlite": on_a_small_disk, "sqlite under a limit": under_a_limit, "postgresql": on_postgresql}
    with ways[request.param](tmp_path) as place:
        yield place
        place.collector.stop()


@contextmanager
def on_a_small_disk(folder: Path) -> Iterator[Place]:
    with small_disk(folder / "disk", "16m") as disk:
        collector = Collector(folder, database_url=f"sqlite:///{disk.folder / 'collector.db'}").start()
        yield Place(collector, lambda: disk.fill(LEFT), disk.free)


@contextmanager
def under_a_limit(folder: Path) -> Iterator[Place]:
    """No file of the collector may grow beyond what its log of changes has: as under a quota."""
    collector = Collector(folder).start()
    grown = Path(f"{collector.database}-wal")

    def limit(most: int) -> None:
        resource.prlimit(collector.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

    yield Place(collector, lambda: limit(grown.stat().st_size + LEFT), lambda: limit(resource.RLIM_INFINITY))


@contextmanager
def on_postgresql(folder: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        home = stack.enter_context(folder_of_its_own())
        user = str(os.stat(home).st_uid)
        disk: Disk = stack.enter_context(small_disk(home / "disk", "128m", user=user))
        server = PostgreSQL(home, data=disk.folder / "data")
        server.start()
        stack.callback(server.stop)
        store = connect(server.url)
        migrations.migrate(store)
        store.close()
        collector = Collector(folder, database_url=server.url).start()
        yield Place(collector, lambda: disk.fill(LEFT), disk.free)


def test_a_full_disk_answers_507_and_recovers_without_repair(place: Place, recorded: list[RecordedStream]) -> None:
    collector = place.collector
    senders = [
        Sender(stream, collector_client(collector.url), 90, restless=False, rest=lambda _: None) for stream in recorded
    ]
    for _ in range(10):
        for sender in senders:
            sender.step()
    place.fill()
    refused = wait_for(lambda: full(senders), "the disk is full", collector.log)
    assert (507, 30.0) == refused
    is_read(collector, recorded)
    for _ in range(5):
        assert {sender.step().status for sender in senders} <= {200, 507}
    pid = collector.pid
    place.free()
    all_at_once([sender.send_all for sender in senders])
    runs = {stream.run for stream in recorded}
    wait_for(lambda: all(state(collector, run) == "ended" for run in runs), "the runs have ended", collector.log)
    with stored.opened(collector.database_url) as database:
        for stream in recorded:
            holds_what_was_sent(database, stream)
    assert pid == collector.pid
    assert "Traceback" not in collector.log(10**7)


def full(senders: Sequence[Sender]) -> tuple[int, float | None] | None:
    """(Status, Retry-After) of the first batch that is refused."""
    for sender in senders:
        answer = sender.step()
        if answer.unavailable:
            assert "free space" in answer.detail
            return answer.status, answer.retry_seconds
    return None


def is_read(collector: Collector, recorded: Sequence[RecordedStream]) -> None:
    ways = [f"/api/v1/runs/{stream.run}{page}" for stream in recorded for page in PAGES]
    for path in (*ways, "/api/v1/runs", "/api/v1/incidents", "/metrics", "/metrics/self", "/readyz", "/"):
        assert 200 == httpx.get(collector.url + path, timeout=20).status_code, path


def state(collector: Collector, run: str) -> str | None:
    with stored.opened(collector.database_url) as database:
        return stored.state(database, run)
