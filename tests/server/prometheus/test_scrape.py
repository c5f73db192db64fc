"""The cached text of runs is what the tables contain, whatever happens to those runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from ammeter_server.config.settings import Settings
from ammeter_server.db import Store, connect
from ammeter_server.db.step_tables import day_of
from ammeter_server.maintenance import retention
from ammeter_server.prometheus import scrape
from ammeter_server.prometheus.scrape import COUNTERS_STAY_NS, INFO_STAYS_NS, Scrape
from ammeter_server.runs.rank_totals import REPORTING_NS
from tests.server.feeding import STEP, Stream, break_down, serving, train, wait_until
from tests.server.keeping import server


@dataclass
class Place:
    """A collector, its database, and somebody who has scraped all the time."""

    client: httpx.Client
    store: Store
    scrape: Scrape

    def told(self, later: int = 0) -> str:
        """What is told now, or so many ns later: by who remembers, and by who has just been started."""
        now = time.time_ns() + later
        asked = (Scrape(self.store), self.scrape, Scrape(self.store))
        before, remembered, after = (b"".join(scrape.text(now, False)).decode() for scrape in asked)
        if before != after:  # the judge was at it meanwhile
            return self.told(later)
        assert after == remembered
        return remembered

    def run(self, project: str = "demo") -> Stream:
        """A run that has just ended."""
        stream = Stream(self.client, project=project, begin=time.time_ns() - 60 * STEP)
        train(stream, 0, 20)
        stream.bye(20)
        stream.send()
        self.wait(stream, "ended")
        return stream

    def wait(self, stream: Stream, state: str) -> None:
        wait_until(lambda: self.client.get(f"/api/v1/runs/{stream.run}").json()["state"] == state)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with server(request.param) as url, serving(tmp_path, url) as client:
        store = connect(url or f"sqlite:///{tmp_path / 'collector.db'}")
        try:
            yield Place(client, store, Scrape(store))
        finally:
            store.close()


def steps(run: str) -> str:
    return f'ammeter_steps_total{{outcome="applied",run="{run}"}}'


def test_what_comes_late_of_a_run_that_is_over_shows_at_once(place: Place) -> None:
    stream = place.run()
    assert f"{steps(stream.run)} 21.0" in place.told()
    late = Stream(place.client, run=stream.run, rank=1, world_size=2, begin=stream.begin)
    train(late, 0, 30)
    late.send()
    assert f"{steps(stream.run)} 31.0" in place.told()
    late.send(backlog=4711)
    assert f'ammeter_agent_journal_bytes{{run="{stream.run}"}} 4711.0' in place.told()


def test_a_run_that_goes_on_and_ends_again_is_told_as_it_is(place: Place) -> None:
    stream = place.run()
    place.told()
    again = Stream(place.client, run=stream.run, begin=time.time_ns())
    train(again, 0, 9)
    again.send()
    place.wait(stream, "running")
    assert "ammeter_run_end_timestamp_seconds" not in place.told()
    break_down(again, 10, 12)
    again.bye(12, "exception")
    again.send()
    place.wait(stream, "ended")
    assert f"{steps(stream.run)} 31.0" in place.told()


def test_a_live_run_shows_each_of_its_requests_and_its_silence(place: Place) -> None:
    stream = Stream(place.client, begin=time.time_ns() - 60 * STEP)
    train(stream, 0, 20)
    stream.send()
    reporting = f'ammeter_run_ranks_reporting{{run="{stream.run}"}}'
    assert {True} == {line in place.told() for line in (f"{steps(stream.run)} 21.0", f"{reporting} 1.0")}
    stream.send(completed_step=25, completed_time=stream.time(25))
    assert f'ammeter_run_step{{run="{stream.run}"}} 25.0' in place.told()
    train(stream, 21, 30)
    stream.send()
    assert f"{steps(stream.run)} 31.0" in place.told()
    stream.send(backlog=4711)
    assert f'ammeter_agent_journal_bytes{{run="{stream.run}"}} 4711.0' in place.told()
    assert f"{reporting} 0.0" in place.told(REPORTING_NS + 10**9)
    assert f"{reporting} 1.0" in place.told()


def test_an_unchanged_run_is_not_rendered_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(place.client, begin=time.time_ns() - 60 * STEP)
    train(stream, 0, 20)
    stream.send()
    place.wait(stream, "running")
    rendered: list[str] = []
    monkeypatch.setattr(scrape, "add_run", lambda samples, run, *rest, **more: rendered.append(run.id))
    remembering = Scrape(place.store)
    for _ in range(3):
        list(remembering.text(time.time_ns(), False))
        stream.send()  # a heartbeat
    assert rendered.count(stream.run) == 1


def test_what_is_over_is_told_shorter_after_a_while_and_then_not_at_all(place: Place) -> None:
    stream = place.run()
    assert steps(stream.run) in place.told()
    told = place.told(COUNTERS_STAY_NS)
    assert steps(stream.run) not in told
    assert f'ammeter_run_end_timestamp_seconds{{run="{stream.run}"}}' in told
    assert stream.run not in place.told(INFO_STAYS_NS)
    assert steps(stream.run) in place.told()


def test_a_run_that_retention_has_taken_away_is_not_told_and_the_fleet_still_counts_it(place: Place) -> None:
    gone, stays = place.run("speech"), Stream(place.client, begin=time.time_ns() - 60 * STEP)
    train(stays, 0, 9)
    stays.send()
    fleet = 'ammeter_fleet_steps_total{outcome="applied",project="speech"} 21.0'
    assert {True} == {word in place.told() for word in (gone.run, stays.run, fleet)}
    retention.retain(place.store, Settings(keep_days=1), day_of(time.time_ns()) + 3)
    assert [False, True, True] == [word in place.told() for word in (gone.run, stays.run, fleet)]


def test_runs_are_told_the_oldest_first(place: Place) -> None:
    begin = time.time_ns() - 60 * STEP
    streams = [Stream(place.client, begin=begin - number) for number in range(4)]
    for stream in streams:
        train(stream, 0, 5)
        if stream is not streams[2]:
            stream.bye(5)
        stream.send()
    for stream in streams:
        place.wait(stream, "running" if stream is streams[2] else "ended")
    lines = [line for line in place.told().splitlines() if line.startswith("ammeter_run_info")]
    assert [stream.run in line for stream, line in zip(reversed(streams), lines, strict=True)] == [True] * 4
