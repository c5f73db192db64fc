"""From a training process to the collector, whichever process dies: every row that was written arrives once."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ammeter import journal
from ammeter.wire import columns
from ammeter.wire import frames as wire
from tests.e2e.processes import Collector, Proxy, Training, last_words, wait_for
from tests.parts import need

pytestmark = pytest.mark.long

OUTAGE = 2 * 10**9
"""Nanoseconds that the collector is of no use: a hundred steps of the training."""


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    (tmp_path / "server").mkdir()
    started = Collector(tmp_path / "server").start()
    yield started
    started.stop()


@pytest.fixture
def proxy(collector: Collector) -> Iterator[Proxy]:
    built = Proxy(collector)
    yield built
    built.stop()


def _delivered_whole(collector: Collector, training: Training) -> None:
    """What the collector holds is what the journal holds: every row, bit by bit, once, in order."""
    wait_for(
        lambda: collector.rows(training.run) == training.written(),
        "the collector has what the journal has",
        lambda: f"{_steps(collector, training)}\n{collector.log()}\n{_shipper_log(training)}",
    )
    wait_for(lambda: not training.shippers(), "the shipper has left", lambda: _shipper_log(training))
    assert collector.rows(training.run) == training.written()


def _steps(collector: Collector, training: Training) -> str:
    have = {stream: [step for step, _ in rows] for stream, rows in collector.rows(training.run).items()}
    return f"collector: {have}; journal: {[len(rows) for rows in training.written().values()]} rows"


def _shipper_log(training: Training) -> str:
    path = training.journals / training.run / "shipper.log"
    return path.read_text() if path.exists() else "no shipper.log"


def test_a_run_that_ends_is_delivered_whole_and_ended(collector: Collector, tmp_path: Path) -> None:
    training = Training(tmp_path, collector.url, 40, 0.005, 8)
    assert 0 == training.wait()
    _delivered_whole(collector, training)
    (rows,) = training.written().values()
    assert list(range(40)) == [step for step, _ in rows]
    run = wait_for(lambda: _run_in_state(collector, training, "ended"), "the run has ended")
    assert (40, 39) == (run["counters"]["applied"], run["last_step"])
    assert "" == training.errors()


def test_kill_9_of_the_trainer_at_random_moments_loses_and_doubles_nothing(
    collector: Collector, tmp_path: Path
) -> None:
    chance = random.Random(20)
    trainings = []
    for batch in range(5):
        for one in range(4):
            folder = tmp_path / f"{batch}.{one}"
            folder.mkdir()
            trainings.append(Training(folder, collector.url, 100_000, 0.002, 8))
        for training in trainings[-4:]:
            time.sleep(chance.uniform(0.0, 0.6))
            training.kill()
            _found_lost(collector, training, time.monotonic())
    for training in trainings:
        _delivered_whole(collector, training)


def _found_lost(collector: Collector, training: Training, died: float) -> None:
    """run-lost is open within 5 seconds after the death, and names the last step."""
    incident = wait_for(
        lambda: _incident(collector, training, "run-lost"), "run-lost is open", collector.log, seconds=5
    )
    assert time.monotonic() - died < 5
    (rows,) = training.written().values()
    last = rows[-1][0] if rows else -1
    assert last == incident["last_step"]
    assert "open" == incident["state"]
    assert last < 0 or f"last recorded step is {last}" in incident["cause"]
    bye = last_words(training)
    assert bye is not None
    assert ("lost", last) == (bye.reason, bye.step)


def _run_in_state(collector: Collector, training: Training, state: str) -> dict[str, object] | None:
    found: dict[str, object] = collector.ask(f"/api/v1/runs/{training.run}")
    return found if found["state"] == state else None


def _incident(collector: Collector, training: Training, verdict: str) -> dict[str, object] | None:
    try:
        found = collector.ask(f"/api/v1/runs/{training.run}/incidents")["items"]
    except OSError:  # the run is not known yet
        return None
    return next((incident for incident in found if incident["verdict"] == verdict), None)


def test_a_trainer_that_is_pid_1_of_its_namespace_is_delivered_whole_with_its_bye(
    collector: Collector, tmp_path: Path
) -> None:
    unshare = (need("unshare"), "--pid", "--fork", "--mount-proc", "--kill-child")
    training = Training(tmp_path, collector.url, 60, 0.002, 8, prefix=unshare)
    assert 0 == training.wait(), training.errors()
    (written,) = training.written().values()
    assert 60 == len(written)
    assert collector.rows(training.run) == training.written()
    wait_for(lambda: _run_in_state(collector, training, "ended"), "the run has ended by its own goodbye")


def test_kill_9_of_the_collector_in_the_middle_costs_nothing_but_time(collector: Collector, tmp_path: Path) -> None:
    training = Training(tmp_path, collector.url, 700, 0.02, 8)
    wait_for(lambda: collector.rows(training.run), "the first rows have arrived")
    began = time.time_ns()
    collector.kill()
    time.sleep(10)
    ended = time.time_ns()
    collector.start()
    assert 0 == training.wait()
    _delivered_whole(collector, training)
    _no_trace_in_the_step_times(training, began, ended)


@pytest.mark.parametrize("state", [500, "hang", 401])
def test_a_collector_that_is_of_no_use_for_a_while_costs_nothing_but_time(
    state: str | int, proxy: Proxy, collector: Collector, tmp_path: Path
) -> None:
    training = Training(tmp_path, proxy.url, 350, 0.02, 8)
    wait_for(lambda: collector.rows(training.run), "the first rows have arrived")
    began, proxy.state = time.time_ns(), state
    wait_for(
        lambda: proxy.seen.count(state) >= 2 and time.time_ns() > began + OUTAGE, "the shipper has met it for a while"
    )
    ended, proxy.state = time.time_ns(), "open"
    assert 0 == training.wait()
    _delivered_whole(collector, training)
    _no_trace_in_the_step_times(training, began, ended)
    assert 350 == len(*training.written().values())


def _no_trace_in_the_step_times(training: Training, began: int, ended: int) -> None:
    """Steps during the outage took what the others took. They sleep 20 ms each; waiting for us would be seconds."""
    (folder,) = journal.streams(training.journals / training.run)
    frames = [entry.frame for entry in journal.read(folder)]
    schema = next(frame.schema for frame in frames if isinstance(frame, wire.Hello))
    rows = columns.view(schema, [frame for frame in frames if isinstance(frame, wire.Steps)])
    seconds = rows.scalar("step_seconds")
    inside = (rows.times > began) & (rows.times < ended)
    assert 30 < inside.sum()
    during, others = np.nanmedian(seconds[inside]), np.nanmedian(seconds[~inside])
    assert during < 1.5 * others


def test_a_poison_frame_is_declared_and_everything_else_arrives(
    proxy: Proxy, collector: Collector, tmp_path: Path
) -> None:
    def poison(batch: wire.Batch) -> int | None:
        """Refuses the block that holds step 33, as a collector does that finds one row it cannot take."""
        for index, item in enumerate(batch.items):
            if isinstance(item, wire.Block) and item.first_step <= 33 <= item.last_step:
                return index
        return None

    proxy.refuse = poison
    training = Training(tmp_path, proxy.url, 80, 0.005, 8)
    assert 0 == training.wait()
    wait_for(lambda: not training.shippers(), "the shipper has left", lambda: _shipper_log(training))
    (stream,) = collector.rows(training.run).values()
    (written,) = training.written().values()
    assert [row for row in written if row[0] != 33] == stream
    run = collector.ask(f"/api/v1/runs/{training.run}")
    assert {"rejected": {"steps": 1, "events": 0}} == run["lost"]


def test_a_database_restored_from_an_older_copy_gets_the_rest_again(collector: Collector, tmp_path: Path) -> None:
    training = Training(tmp_path, collector.url, 500, 0.02, 8)
    wait_for(lambda: collector.rows(training.run), "the first rows have arrived")
    collector.stop()
    older = tmp_path / "older"
    shutil.copytree(collector.database.parent, older)
    few = len(*collector.rows(training.run).values())
    collector.start()
    wait_for(lambda: len(*collector.rows(training.run).values()) > few + 50, "many more rows have arrived")
    collector.stop()
    for path in collector.database.parent.glob("collector.db*"):
        path.unlink()
    for path in older.glob("collector.db*"):
        shutil.copy(path, collector.database.parent)
    collector.start()
    assert 0 == training.wait()
    _delivered_whole(collector, training)
    assert 500 == len(*collector.rows(training.run).values())
    assert {} == collector.ask(f"/api/v1/runs/{training.run}")["lost"]


def test_what_a_thinned_journal_no_longer_holds_is_counted_and_shown(collector: Collector, tmp_path: Path) -> None:
    from ammeter.shipper import process

    run, stream = "11111111-2222-4333-8444-555555555555", "0" * 32
    folder = tmp_path / "journals" / run / stream
    schema = wire.Schema(scalars=("loss",))
    writer = journal.Journal(folder, segment_bytes=1200)
    writer.hello(wire.Hello(run=run, stream=stream, schema=schema, started=1))
    for step in range(100):
        writer.append(wire.Steps(step, step + 1, np.array([step], np.float32).tobytes()))
        if step % 10 == 0:
            writer.append(wire.Event("step.skipped", step, step + 1, {}))
    writer.append(wire.Bye("closed", 99, 101))
    writer.close()
    closed = journal.segments(folder)[:-1]
    journal.thin(closed[0][1], stride=10)
    journal.thin(closed[1][1], stride=0)
    journal.drop(closed[2][1], closed[3][0])
    left = [entry.frame for entry in journal.read(folder)]
    assert 0 == process.main([str(folder), "--url", collector.url, "--once"])
    (rows,) = collector.rows(run).values()
    assert [frame.step for frame in left if isinstance(frame, wire.Steps)] == [step for step, _ in rows]
    assert len(rows) < 100
    lost = collector.ask(f"/api/v1/runs/{run}")["lost"]
    assert 100 - len(rows) == sum(gap["steps"] for gap in lost.values())
    events = collector.events(run)
    assert 10 - len(events) == sum(gap["events"] for gap in lost.values())
    assert {"journal-thinned", "journal-cap"} == set(lost)
