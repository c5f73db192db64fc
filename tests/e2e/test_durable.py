"""What was acknowledged is there, whoever is killed right behind it: kill -9 of the collector, and of PostgreSQL."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
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

pytestmark = pytest.mark.long

ROUNDS = 2
LONGEST = 10.0
"""Seconds that nobody waits longer for an answer while PostgreSQL is down."""

WEAK = {"synchronous_commit": "off", "wal_writer_delay": "10s"}
"""Settings with which PostgreSQL says that something is committed ten seconds before it is on the disk."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[RecordedStream]:
    return written(tmp_path_factory.mktemp("journals"))[8:]


@pytest.fixture
def server() -> Iterator[PostgreSQL]:
    with folder_of_its_own() as folder:
        server = PostgreSQL(folder, None, **WEAK)
        server.start()
        store = connect(server.url)
        migrations.migrate(store)
        store.close()
        try:
            yield server
        finally:
            server.stop()


def sends(senders: Sequence[Sender], until: threading.Event) -> None:
    """Sends batches of all of them until the event."""

    def send(sender: Sender) -> None:
        while not until.is_set() and sender.offset < sender.recorded.end:
            sender.step()

    all_at_once([lambda sender=sender: send(sender) for sender in senders])  # type: ignore[misc]


def are_taken(count: int, senders: Sequence[Sender], collector: Collector) -> None:
    """Waits until so many batches are."""
    wait_for(
        lambda: sum(sender.taken for sender in senders) >= count,
        f"{count} batches were taken",
        lambda: f"{[(sender.offset, sender.last) for sender in senders]} {collector.where()}",
    )


def kept(url: str, senders: Sequence[Sender]) -> dict[str, int]:
    """Stream -> how much less is stored than was acknowledged, where that is so."""
    with stored.opened(url) as database:
        acknowledged = {
            stream: row["acknowledged"]
            for run in {sender.recorded.run for sender in senders}
            for stream, row in stored.streams(database, run).items()
        }
    behind = {sender.recorded.stream: sender.offset - acknowledged.get(sender.recorded.stream, 0) for sender in senders}
    return {stream: missing for stream, missing in behind.items() if missing > 0}


def test_kill_9_of_the_collector_behind_an_acknowledgement_loses_nothing(
    tmp_path: Path, recorded: list[RecordedStream]
) -> None:
    collector = Collector(tmp_path)
    senders = [Sender(stream, collector_client(collector.url), 100) for stream in recorded]
    try:
        for number in range(ROUNDS):
            collector.start()
            killed, before = threading.Event(), sum(sender.taken for sender in senders)
            threads = threading.Thread(target=sends, args=(senders, killed))
            threads.start()
            are_taken(before + 50 + number, senders, collector)
            collector.kill()
            killed.set()
            threads.join()
            assert {} == kept(collector.database_url, senders)
        collector.start()
        all_at_once([sender.send_all for sender in senders])
        with stored.opened(collector.database_url) as database:
            for stream in recorded:
                holds_what_was_sent(database, stream)
    finally:
        collector.stop()


def test_kill_9_of_postgresql_behind_an_acknowledgement_loses_nothing_and_collectors_find_it_again(
    tmp_path: Path, recorded: list[RecordedStream], server: PostgreSQL
) -> None:
    collector = Collector(tmp_path, database_url=server.url).start()
    senders = [Sender(stream, collector_client(collector.url), 100, rest=lambda _: None) for stream in recorded]
    try:
        for number in range(ROUNDS):
            killed, before = threading.Event(), sum(sender.taken for sender in senders)
            threads = threading.Thread(target=sends, args=(senders, killed))
            threads.start()
            are_taken(before + 50 + number, senders, collector)
            server.kill()
            killed.set()
            threads.join()
            says_that_it_is_away(collector, senders[number])
            server.start()
            assert {} == kept(server.url, senders)
            wait_for(lambda: is_ready(collector), "the collector is back")
        all_at_once([sender.send_all for sender in senders])
        with stored.opened(server.url) as database:
            for stream in recorded:
                holds_what_was_sent(database, stream)
        assert "Traceback" not in collector.log(10**7)
    finally:
        collector.stop()


def is_ready(collector: Collector) -> bool:
    return httpx.get(collector.url + "/readyz", timeout=30).status_code == 200


def says_that_it_is_away(collector: Collector, sender: Sender) -> None:
    """503 to whoever sends and to whoever reads, with the remedy, and soon."""
    began = time.monotonic()
    answer = sender.step()
    assert (503, 2.0) == (answer.status, answer.retry_seconds)
    assert "start it" in answer.detail
    for path in ("/api/v1/runs", f"/api/v1/runs/{sender.recorded.run}/series?names=loss", "/metrics", "/readyz"):
        read = httpx.get(collector.url + path, timeout=LONGEST)
        assert 503 == read.status_code, path
    assert time.monotonic() - began < 5 * LONGEST
