from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx
import pytest

from ammeter_server.db import StoreRefusingError, connect, migrations
from ammeter_server.ops import metrics
from ammeter_server.prometheus import scrape_process
from ammeter_server.prometheus.scrape_process import ScrapeError, ScrapeProcess
from tests.e2e.processes import Collector
from tests.server.feeding import Stream, serving, train, wait_until

SHARED_PARTS = (b"fork_server", b"postgres", b"chrom")
"""In the command lines of processes that all tests of a worker share."""


def children(process: int) -> list[int]:
    """Returns the living processes that a process has started, without those that all tests share."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = place.read_text().rpartition(")")[2].split()[:2]
            command = place.with_name("cmdline").read_bytes()
        except OSError:
            continue
        is_shared = any(part in command for part in SHARED_PARTS)
        if int(parent) == process and state != "Z" and not is_shared:
            found.append(int(place.parent.name))
    return found


@pytest.fixture
def database(tmp_path: Path) -> str:
    """Of a file that has no tables yet."""
    return f"sqlite:///{tmp_path / 'collector.db'}"


@pytest.fixture
def beside(database: str) -> Iterator[ScrapeProcess]:
    beside = ScrapeProcess(database)
    yield beside
    beside.stop()


def migrate(database: str) -> None:
    store = connect(database)
    migrations.migrate(store)
    store.close()


def scraped(beside: ScrapeProcess) -> bytes:
    return b"".join(anyio.run(beside.text, False))


def test_nothing_is_started_before_the_first_scrape_and_nothing_is_left_after_the_last(tmp_path: Path) -> None:
    before = children(os.getpid())
    with serving(tmp_path) as client:
        assert before == children(os.getpid())
        for _ in range(3):
            assert 200 == client.get("/metrics").status_code
        assert len(before) + 1 == len(children(os.getpid()))
    assert before == children(os.getpid())


def test_where_the_process_has_died_the_next_scrape_has_another(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        stream = Stream(client)
        train(stream, 0, 3)
        stream.send()
        wait_until(lambda: "ammeter_agent_overhead_ratio{" in client.get("/metrics").text)  # the run is judged
        first, before = client.get("/metrics"), children(os.getpid())
        os.kill(before[-1], signal.SIGKILL)
        assert first.text == client.get("/metrics").text
        assert before != children(os.getpid())


def test_what_fails_there_is_told_here_and_the_next_scrape_may_do_better(beside: ScrapeProcess, database: str) -> None:
    with pytest.raises(ScrapeError, match="no such table: runs"):
        scraped(beside)
    (process,) = children(os.getpid())
    migrate(database)
    assert b"" == scraped(beside)
    assert [process] == children(os.getpid())


def test_a_database_that_is_away_is_said_in_words_and_asked_again(
    beside: ScrapeProcess, database: str, tmp_path: Path
) -> None:
    (tmp_path / "collector.db").mkdir()
    with pytest.raises(StoreRefusingError, match=r"^the database cannot be opened"):
        scraped(beside)
    (tmp_path / "collector.db").rmdir()
    migrate(database)
    assert b"" == scraped(beside)


def test_a_scrape_while_the_database_is_away_is_no_fault_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path) as client:
        (tmp_path / "collector.db").rename(tmp_path / "moved.db")
        (tmp_path / "collector.db").mkdir()
        answer = client.get("/metrics")
    assert (503, "5") == (answer.status_code, answer.headers["retry-after"])
    assert answer.json()["detail"].startswith("the database cannot be opened")
    assert [] == [record.getMessage() for record in caplog.records if record.name == metrics.__name__]


def test_a_scrape_that_fails_is_a_problem_and_the_collector_goes_on(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        with sqlite3.connect(tmp_path / "collector.db") as database:
            database.execute("DROP TABLE totals")
        answer = client.get("/metrics")
        assert (503, "application/problem+json") == (answer.status_code, answer.headers["content-type"])
        assert 200 == client.get("/metrics/self").status_code


def test_a_scrape_that_takes_too_long_is_given_up(
    beside: ScrapeProcess, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate(database)
    with monkeypatch.context() as patch:
        patch.setattr(scrape_process, "SCRAPE_TIMEOUT_SECONDS", 0.0)
        with pytest.raises(ScrapeError, match="was cancelled"):
            scraped(beside)
    assert [] == children(os.getpid())
    assert b"" == scraped(beside)


def test_after_the_end_nothing_is_started_any_more(beside: ScrapeProcess, database: str) -> None:
    migrate(database)
    scraped(beside)
    beside.stop()
    beside.stop()
    assert [] == children(os.getpid())
    with pytest.raises(ScrapeError, match="is stopping"):
        scraped(beside)


def test_the_process_ends_with_its_collector_however_that_ends(tmp_path: Path) -> None:
    collector = Collector(tmp_path).start()
    try:
        assert httpx.get(f"{collector.url}/metrics", timeout=30).is_success
        assert collector._process is not None
        (process,) = children(collector._process.pid)
    finally:
        collector.kill()
    wait_until(lambda: not Path(f"/proc/{process}").exists() or "Z" in Path(f"/proc/{process}/stat").read_text())


def test_the_process_cannot_be_asked_for_secrets_from_outside(beside: ScrapeProcess, database: str) -> None:
    migrate(database)
    scraped(beside)
    (process,) = children(os.getpid())
    assert database.encode() not in Path(f"/proc/{process}/cmdline").read_bytes()
