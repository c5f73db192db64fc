"""Rows of a busy collector wait for their verdicts, and lead to the same conclusions."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, update

from ammeter.wire import codec
from ammeter.wire.frames import Batch, Lost
from ammeter_server.config.settings import Settings
from ammeter_server.context import AppContext
from ammeter_server.db import Row, Store, connect, migrations
from ammeter_server.db.step_tables import chunks
from ammeter_server.db.tables import findings, runs, streams
from ammeter_server.ingest import postponement, transaction
from ammeter_server.ingest.postponement import GRACE_NS, MAX_DELAY_NS, Postponement
from ammeter_server.ingest.registration import IngestRequest
from ammeter_server.ingest.stream_cache import StreamKey
from ammeter_server.ingest.stream_update import MAX_POSTPONED_ROWS
from ammeter_server.ingest.writer_queue import Intake
from ammeter_server.judging.silent_streams import SILENCE_NS, tick
from ammeter_server.maintenance.compaction import MIN_SMALL_BLOCKS, compact
from tests.server.databases import postgresql
from tests.server.feeding import Stream, break_down, serving, train, wait_until

RUN, STREAM = "6d3c6b0e-7f0b-4f0e-9a44-3b6f6d0f2f11", "0" * 32
SECOND = 10**9


@dataclass
class Clock:
    now: int = 0

    def __call__(self) -> int:
        return self.now


@dataclass
class Taking:
    """Stands where an HTTP client does, and passes each batch to an intake that is as busy as the test wants."""

    context: AppContext
    clock: Clock = field(default_factory=Clock)
    intake: Intake = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Another process of the collector, which knows only the database."""
        self.intake = Intake(self.context)
        self.intake.postponement = Postponement(self.clock)

    def is_busy(self, busy: bool = True) -> None:
        self.intake.postponement.observe(60.0, busy)

    def post(self, path: str, content: bytes, headers: dict[str, str]) -> Any:
        *_, run, _, stream, _, query = path.replace("?", "/").split("/")
        offset, end = (int(parameter.partition("=")[2]) for parameter in query.split("&"))
        (answer,) = self.intake.commit_group([IngestRequest(run, stream, offset, end, content)])
        return httpx.Response(200 if answer == end else 500, text=str(answer))

    @property
    def row(self) -> Row[Any]:
        with self.context.store.reading() as connection:
            return connection.execute(select(streams)).one()

    @property
    def chunk_count(self) -> int:
        with self.context.store.reading() as connection:
            return connection.execute(select(func.count()).select_from(chunks)).scalar_one()

    def findings(self) -> list[tuple[Any, ...]]:
        with self.context.store.reading() as connection:
            query = select(findings.c.verdict, findings.c.body).order_by(findings.c.verdict)
            return [tuple(row) for row in connection.execute(query)]

    def catch_up(self) -> None:
        self.intake._catch_up(self.intake.postponement.take_overdue(10))


def opened(url: str) -> Taking:
    store = connect(url)
    migrations.migrate(store)
    return Taking(AppContext(Settings(database_url=url), store))


@pytest.fixture
def taking(tmp_path: Path) -> Iterator[Taking]:
    taking = opened(f"sqlite:///{tmp_path / 'collector.db'}")
    yield taking
    taking.context.store.close()


def begun(taking: Taking, steps: int = 1) -> Stream:
    stream = Stream(taking, run=RUN, stream=STREAM)  # type: ignore[arg-type]
    train(stream, 0, steps - 1)
    stream.send()
    stream.send()  # a heartbeat, after which the intake has the stream in its cache
    return stream


def send_rows(stream: Stream, first: int, last: int) -> None:
    """One batch for each row."""
    for step in range(first, last + 1):
        train(stream, step, step)
        stream.send()


@pytest.mark.parametrize("seed", range(4))
def test_a_busy_collector_concludes_the_same(tmp_path: Path, seed: int) -> None:
    rows, concluded, postponed = [], [], 0
    for name, load in (("idle", random.Random("idle")), ("busy", random.Random(seed))):
        taking, sizes = opened(f"sqlite:///{tmp_path / name}.db"), random.Random(seed)
        stream, step = begun(taking, 5), 5
        taking.is_busy(name == "busy")
        while step < 400:
            if name == "busy" and load.random() < 0.1:
                taking.is_busy(load.random() < 0.7)
            taking.clock.now += int(load.random() * 0.4 * SECOND)
            last = step + sizes.choice((0, 0, 0, 1, 6, 40))
            train(stream, step, last)
            if sizes.random() < 0.05:
                stream.say("scaler.growth", last, **{"from": 32768.0, "to": 65536.0})
            stream.send()
            postponed += taking.row.postponed_from is not None
            if name == "busy" and load.random() < 0.05:
                taking.catch_up()
            if name == "busy" and load.random() < 0.03:
                taking.restart()
            step = last + 1
        break_down(stream, step, step + 12)
        stream.bye(step + 12)
        stream.send()
        assert taking.row.postponed_from is None
        own = ("last_seen", "opened", "states", "version")
        rows.append({key: value for key, value in taking.row._mapping.items() if key not in own})
        concluded.append(taking.findings())
        taking.context.store.close()
    assert postponed > 5
    assert rows[0] == rows[1]
    assert concluded[0] == concluded[1] != []


def test_with_time_for_every_batch_no_row_waits(taking: Taking) -> None:
    stream = begun(taking)
    send_rows(stream, 1, 5)
    assert (None, 6) == (taking.row.postponed_from, taking.row.counters["steps"])
    assert 0 == taking.intake.verdict_delay


def test_rows_wait_while_the_collector_is_busy_and_are_judged_with_a_later_batch(taking: Taking) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, 3)
    row = taking.row
    assert (1, 3, 4, 1) == (row.postponed_from, row.last_step, row.rows, row.counters["steps"])
    taking.clock.now += MAX_DELAY_NS
    send_rows(stream, 4, 4)
    assert (None, 5) == (taking.row.postponed_from, taking.row.counters["steps"])


@pytest.mark.parametrize("what", ["an event", "a loss", "a gap", "a final record", "many rows", "a new schema"])
def test_what_is_more_than_some_rows_is_judged_at_once_and_with_it_the_rows_that_wait(
    taking: Taking, what: str
) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, 3)
    said: dict[str, Any] = {}
    if what == "an event":
        stream.say("scaler.growth", 3, **{"from": 1.0, "to": 2.0})
    elif what == "a loss":
        stream.items.append(Lost("journal-full", 3))
    elif what == "a gap":
        said = {"gaps": [Lost("journal-full", 3, 0, stream.offset, stream.offset + 100)]}
    elif what == "a final record":
        stream.bye(3)
    elif what == "many rows":
        train(stream, 4, 4 + MAX_POSTPONED_ROWS)
    else:
        stream.items.append(stream.hello())
    stream.send(**said)
    assert (None, taking.row.rows) == (taking.row.postponed_from, taking.row.counters["steps"])


def test_rows_wait_no_longer_than_they_should_when_no_more_batch_comes(taking: Taking) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, 3)
    taking.clock.now += MAX_DELAY_NS + GRACE_NS - 1
    assert {} == taking.intake.postponement.take_overdue(10)
    taking.clock.now += 1
    taking.catch_up()
    assert (None, 4) == (taking.row.postponed_from, taking.row.counters["steps"])
    assert {} == taking.intake.postponement.take_overdue(10, at_once=True)
    send_rows(stream, 4, 4)
    assert 4 == taking.row.postponed_from


def test_a_collector_that_has_time_again_judges_what_waits(taking: Taking) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, 3)
    taking.is_busy(False)
    taking.catch_up()
    assert (None, 4) == (taking.row.postponed_from, taking.row.counters["steps"])


@pytest.mark.parametrize("compacted", [False, True])
def test_a_collector_that_died_leaves_its_rows_to_the_next(taking: Taking, compacted: bool) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, MIN_SMALL_BLOCKS if compacted else 3)
    if compacted:
        assert compact(taking.context.store, RUN, STREAM, "worker")
        assert taking.chunk_count < MIN_SMALL_BLOCKS
    taking.restart()
    send_rows(stream, taking.row.last_step + 1, taking.row.last_step + 1)
    assert (None, taking.row.rows) == (taking.row.postponed_from, taking.row.counters["steps"])


def test_a_heartbeat_after_a_restart_is_enough(taking: Taking) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, 3)
    taking.restart()
    stream.send()
    assert 1 == taking.row.postponed_from
    taking.catch_up()
    assert (None, 4) == (taking.row.postponed_from, taking.row.counters["steps"])


def test_rows_of_a_stream_that_nobody_sends_any_more_are_judged_before_it_is_lost(taking: Taking) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, 3)
    store, last_seen = taking.context.store, taking.row.last_seen
    tick(store, last_seen + SILENCE_NS - 1, 0)
    assert 1 == taking.row.postponed_from
    tick(store, last_seen + SILENCE_NS + 1, 0)
    assert (None, 4) == (taking.row.postponed_from, taking.row.counters["steps"])
    assert ["run-lost"] == [verdict for verdict, _ in taking.findings()]


def test_what_waits_is_judged_before_the_collector_stops(taking: Taking) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, 3)
    taking.intake.stop()
    assert (None, 4) == (taking.row.postponed_from, taking.row.counters["steps"])


def test_rows_that_are_damaged_on_the_disk_do_not_stop_their_stream(taking: Taking) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, 3)
    with taking.context.store.writing() as connection:
        connection.execute(update(chunks).where(chunks.c.first_step == 2).values(data=b"rust"))
    taking.restart()
    send_rows(stream, 4, 4)
    assert (None, 5, 2) == (taking.row.postponed_from, taking.row.rows, taking.row.counters["steps"])


def test_a_run_that_was_deleted_meanwhile_has_no_rows_that_wait(taking: Taking) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, 3)
    with taking.context.store.writing() as connection:
        connection.execute(streams.delete())
        connection.execute(runs.delete())
    taking.is_busy(False)
    taking.catch_up()
    assert {} == taking.intake.postponement.take_overdue(10, at_once=True)


def test_a_fault_over_one_stream_costs_the_others_nothing(taking: Taking, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, other = begun(taking), Stream(taking, run=RUN, stream="1" * 32)  # type: ignore[arg-type]
    train(other, 0, 0)
    other.send()
    taking.is_busy()
    send_rows(stream, 1, 3)
    send_rows(other, 1, 3)
    catch_up = transaction.catch_up

    def faulty(connection: Any, run: str, stream: str, *rest: Any) -> Any:
        if stream == STREAM:
            raise OverflowError("too large")
        return catch_up(connection, run, stream, *rest)

    monkeypatch.setattr(transaction, "catch_up", faulty)
    taking.is_busy(False)
    taking.catch_up()
    with taking.context.store.reading() as connection:
        rows = connection.execute(select(streams.c.postponed_from).order_by(streams.c.id)).scalars().all()
    assert [1, None] == rows
    send_rows(stream, 4, 4)
    with taking.context.store.reading() as connection:
        rows = connection.execute(select(streams.c.postponed_from).order_by(streams.c.id)).scalars().all()
    assert [None, None] == rows


def test_two_collectors_on_postgresql_judge_each_row_once() -> None:
    with postgresql() as url:
        one = opened(url)
        other = Taking(AppContext(one.context.settings, connect(url)))
        stream = begun(one)
        for turn in range(20):
            here = (one, other)[turn % 3 == 2]
            stream.client = here  # type: ignore[assignment]
            here.is_busy()
            send_rows(stream, 3 * turn + 1, 3 * turn + 3)
        for here in (one, other):
            here.is_busy(False)
            here.catch_up()
        assert (None, 61, 61) == (one.row.postponed_from, one.row.rows, one.row.counters["steps"])
        for here in (one, other):
            here.context.store.close()


def test_a_running_collector_judges_all_rows_soon_after_the_load(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        senders = [Stream(client, rank=rank) for rank in range(6)]
        run = senders[0].run
        with ThreadPoolExecutor(len(senders)) as pool:
            list(pool.map(send_many, (replace(sender, run=run, world_size=6) for sender in senders)))
        wait_until(lambda: 150 == client.get(f"/api/v1/runs/{run}").json()["counters"]["steps"], 15)
        wait_until(lambda: "verdict_delay_seconds 0.0" in client.get("/metrics/self").text, 15)


def send_many(stream: Stream) -> None:
    train(stream, 0, 0)
    stream.send()
    send_rows(stream, 1, 149)


def test_the_delay_grows_with_the_load() -> None:
    load = Postponement(Clock())
    delays = []
    for share in (0.2, 0.5, 0.75, 1.0):
        for _ in range(2000):
            load.observe(0.01 * (1 - share), busy=False)
            load.observe(0.01 * share, busy=True)
        delays.append(load.delay / SECOND)
    assert [0, 0, 2.5, 5] == [pytest.approx(delay, abs=0.1) for delay in delays]


def test_only_so_many_values_wait_at_a_time(taking: Taking, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = begun(taking)
    monkeypatch.setattr(postponement, "MAX_POSTPONED_VALUES", 3 * stream.schema.width)
    taking.is_busy()
    send_rows(stream, 1, 3)
    assert 1 == taking.row.postponed_from
    send_rows(stream, 4, 4)
    assert None is taking.row.postponed_from
    send_rows(stream, 5, 5)
    assert 5 == taking.row.postponed_from


def test_a_refused_batch_leaves_the_rows_that_wait(taking: Taking) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, 3)
    body = codec.encode_batch(Batch([codec_block(stream, 2)]))
    request = IngestRequest(RUN, STREAM, stream.offset, stream.offset + 1, body)
    (refused,) = taking.intake.commit_group([request])
    assert isinstance(refused, Exception)
    assert 1 == taking.row.postponed_from
    assert StreamKey.of(request) in taking.intake.postponement.take_overdue(10, at_once=True)
    taking.clock.now += MAX_DELAY_NS
    send_rows(stream, 4, 4)
    assert (None, 5) == (taking.row.postponed_from, taking.row.counters["steps"])


def codec_block(stream: Stream, step: int) -> Any:
    train(stream, step, step)
    stream.pack()
    return stream.items.pop()


def test_a_store_that_is_away_is_asked_again(taking: Taking, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, 3)
    taking.is_busy(False)

    def away(self: Store, durable: bool = True) -> Any:
        raise OSError("away")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "writing", away)
        taking.catch_up()
    assert 1 == taking.row.postponed_from
    stream.send()
    taking.catch_up()
    assert (None, 4) == (taking.row.postponed_from, taking.row.counters["steps"])


def test_runs_have_their_own_keys() -> None:
    request = IngestRequest(str(uuid.uuid4()), "s", 0, 1, b"", project="p", named="n")
    assert StreamKey("p", "n", "s") == StreamKey.of(request)
