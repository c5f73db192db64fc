"""From a training process to the collector, whichever process dies: every row that was written arrives once."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ammeter import journal
from ammeter.wire import columns
from ammeter.wire import frames as wire
from tests.e2e.delivery import Deliveries, delivered_whole, found_lost, has_left, run_in_state, shipper_log
from tests.e2e.processes import Collector, Proxy, wait_for
from tests.e2e.training_process import Training
from tests.parts import need

pytestmark = pytest.mark.long

ENDLESS = 100_000
OUTAGE_STEPS = 60
"""Steps of the training while the collector is of no use, and as many after that."""


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    """A collector that nobody disturbs."""
    started = Collector(tmp_path_factory.mktemp("server")).start()
    yield started
    started.stop()


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that remains until all deliveries of the module are compared."""
    return tmp_path_factory.mktemp("delivery")


@pytest.fixture
def disturbed_collector(tmp_path: Path) -> Iterator[Collector]:
    (tmp_path / "server").mkdir()
    started = Collector(tmp_path / "server").start()
    yield started
    started.stop()


@pytest.fixture
def proxy(collector: Collector) -> Iterator[Proxy]:
    built = Proxy(collector)
    yield built
    built.stop()


@pytest.fixture(scope="module")
def deliveries(collector: Collector) -> Iterator[Deliveries]:
    """Trainings that were delivered. Their shippers wait some seconds for late streams, all of them at once."""
    delivered: Deliveries = []
    yield delivered
    for receiver, training, rows in delivered:
        has_left(training)
        assert receiver.rows(training.run) == rows


def test_a_run_that_ends_is_delivered_whole_and_ended(
    collector: Collector, tmp_path: Path, deliveries: Deliveries
) -> None:
    training = Training(tmp_path, collector.url, 40, 0.005, 8)
    assert 40 == training.wait()
    delivered_whole(collector, training, deliveries)
    (rows,) = training.written().values()
    assert list(range(40)) == [step for step, _ in rows]
    run = wait_for(lambda: run_in_state(collector, training, "ended"), "the run has ended")
    assert (40, 39) == (run["counters"]["applied"], run["last_step"])
    assert "" == training.errors()


def test_kill_9_of_the_trainer_at_random_moments_loses_and_doubles_nothing(
    collector: Collector, tmp_path: Path, deliveries: Deliveries
) -> None:
    chance = random.Random(20)
    for batch in range(3):
        trainings = []
        for one in range(4):
            folder = tmp_path / f"{batch}.{one}"
            folder.mkdir()
            trainings.append(Training(folder, collector.url, ENDLESS, 0.002, 8))
        deaths = []
        for training in trainings:
            time.sleep(chance.uniform(0.0, 0.6))
            training.kill()
            deaths.append(time.time())
        for training, died in zip(trainings, deaths, strict=True):
            found_lost(collector, training, died)
            delivered_whole(collector, training, deliveries)


def test_a_trainer_that_is_pid_1_of_its_namespace_is_delivered_whole_with_its_bye(
    collector: Collector, tmp_path: Path
) -> None:
    unshare = (need("unshare"), "--pid", "--fork", "--mount-proc", "--kill-child")
    training = Training(tmp_path, collector.url, 60, 0.002, 8, prefix=unshare)
    assert 60 == training.wait()
    (written,) = training.written().values()
    assert 60 == len(written)
    assert collector.rows(training.run) == training.written()
    wait_for(lambda: run_in_state(collector, training, "ended"), "the run has ended by its own goodbye")


@dataclass(frozen=True)
class Outage:
    """A training during which its collector was of no use. began, ended: of that, in ns. steps: of the training."""

    collector: Collector
    training: Training
    began: int
    ended: int
    steps: int


OUTAGES: tuple[str | int, ...] = ("killed", 500, "hang", 401)


@pytest.fixture(scope="module")
def outages(
    collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str | int, Future[Outage]]]:
    """Each kind of outage of its own training, all of them at once."""
    with ExitStack() as stack:
        killed = Collector(tmp_path_factory.mktemp("killed")).start()
        stack.callback(killed.stop)
        proxies = {state: Proxy(collector) for state in OUTAGES if state != "killed"}
        for proxy in proxies.values():
            stack.callback(proxy.stop)
        trainings = {}
        for state in OUTAGES:
            url = proxies[state].url if state in proxies else killed.url
            trainings[state] = Training(tmp_path_factory.mktemp("training"), url, ENDLESS, 0.02, 8)
        with ThreadPoolExecutor(len(OUTAGES)) as flows:
            found = {
                state: flows.submit(_through_a_proxy, collector, training, proxies[state], state)
                if state in proxies
                else flows.submit(_through_a_death, killed, training)
                for state, training in trainings.items()
            }
        yield found


def _through_a_proxy(collector: Collector, training: Training, proxy: Proxy, state: str | int) -> Outage:
    def turn(state: str | int) -> None:
        proxy.state = state

    return _outage(collector, training, lambda: turn(state), lambda: proxy.seen.count(state) >= 2, lambda: turn("open"))


def _through_a_death(collector: Collector, training: Training) -> Outage:
    return _outage(collector, training, collector.kill, lambda: True, collector.start)


def _outage(
    collector: Collector,
    training: Training,
    begin: Callable[[], object],
    is_met: Callable[[], bool],
    end: Callable[[], object],
) -> Outage:
    """Lets the training go on for OUTAGE_STEPS during the outage, and for as many after it.

    is_met: whether the shipper has noticed the outage.
    """
    try:
        wait_for(lambda: collector.rows(training.run), "the first rows have arrived")
        before, began = _written(training), time.time_ns()
        begin()
        wait_for(lambda: is_met() and _written(training) >= before + OUTAGE_STEPS, "the shipper has met it for a while")
        ended = time.time_ns()
        end()
        wait_for(lambda: _written(training) >= before + 2 * OUTAGE_STEPS, "the training has gone on")
        return Outage(collector, training, began, ended, training.finish())
    except BaseException:
        training.kill()
        raise


def _written(training: Training) -> int:
    return sum(len(rows) for rows in training.written().values())


@pytest.mark.parametrize("kind", OUTAGES)
def test_a_collector_that_is_of_no_use_for_a_while_costs_nothing_but_time(
    kind: str | int, outages: dict[str | int, Future[Outage]], deliveries: Deliveries
) -> None:
    outage = outages[kind].result()
    delivered_whole(outage.collector, outage.training, deliveries)
    _no_trace_in_the_step_times(outage.training, outage.began, outage.ended)
    assert outage.steps == _written(outage.training)


def _no_trace_in_the_step_times(training: Training, began: int, ended: int) -> None:
    """Steps during the outage took what the others took: 20 ms, and more on a busy machine; a wait would be seconds."""
    (folder,) = journal.streams(training.journals / training.run)
    frames = [entry.frame for entry in journal.read(folder)]
    schema = next(frame.schema for frame in frames if isinstance(frame, wire.Hello))
    rows = columns.view(schema, [frame for frame in frames if isinstance(frame, wire.Steps)])
    seconds = rows.scalar("step_seconds")
    inside = (rows.times > began) & (rows.times < ended)
    assert 30 < inside.sum()
    during, others = np.nanmedian(seconds[inside]), np.nanmedian(seconds[~inside])
    assert during < others + 0.1, "seconds"


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
    assert 80 == training.wait()
    wait_for(lambda: not training.shippers(), "the shipper has left", lambda: shipper_log(training))
    (stream,) = collector.rows(training.run).values()
    (written,) = training.written().values()
    assert [row for row in written if row[0] != 33] == stream
    run = collector.ask(f"/api/v1/runs/{training.run}")
    assert {"rejected": {"steps": 1, "events": 0}} == run["lost"]


def test_a_database_restored_from_an_older_copy_gets_the_rest_again(
    disturbed_collector: Collector, tmp_path: Path, deliveries: Deliveries
) -> None:
    collector = disturbed_collector
    training = Training(tmp_path, collector.url, ENDLESS, 0.02, 8)
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
    steps = training.finish()
    delivered_whole(collector, training, deliveries)
    assert steps == len(*collector.rows(training.run).values())
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
