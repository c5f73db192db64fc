"""Rows of a busy collector wait for their verdicts, and lead to the same conclusions."""

from __future__ import annotations

import math
import random
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ammeter.wire.frames import Lost
from ammeter_server.db.queries import live
from ammeter_server.db.queries import runs as of_runs
from ammeter_server.ingest import postponement, stream_update
from ammeter_server.ingest.postponement import GRACE_NS, MAX_DELAY_NS, Postponement
from ammeter_server.ingest.registration import IngestRequest
from ammeter_server.ingest.stream_cache import StreamKey
from ammeter_server.ingest.stream_update import MAX_POSTPONED_ROWS
from tests.server.feeding import Stream, break_down, serving, train, wait_until
from tests.server.ingest.postponing import RUN, SECOND, Clock, Taking, begun, begun_many, opened, send_rows


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


@pytest.mark.parametrize("later", [MAX_DELAY_NS + SECOND, -SECOND])
def test_a_stream_with_slow_steps_has_nothing_to_wait_for(
    taking: Taking, monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    stream, time_ns = begun(taking), time.time_ns
    taking.is_busy()
    send_rows(stream, 1, 1)
    assert 1 == taking.row.postponed_from
    monkeypatch.setattr(time, "time_ns", lambda: time_ns() + later)
    send_rows(stream, 2, 2)
    assert (None, 3) == (taking.row.postponed_from, taking.row.counters["steps"])


@pytest.mark.parametrize(
    "wrong",
    [{"loss": math.nan}, {"loss": math.inf}, {"skipped": 1.0}, {"grad_norm": math.inf}, {"grad_nonfinite": 3.0}],
    ids=str,
)
def test_a_row_with_something_wrong_does_not_wait(taking: Taking, wrong: dict[str, float]) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, 3)
    stream.tell(4, {"loss": 1.0, "applied": 1.0} | wrong)
    stream.send()
    assert (None, 5) == (taking.row.postponed_from, taking.row.counters["steps"])


def test_a_row_in_which_nothing_was_measured_waits(taking: Taking) -> None:
    stream = begun(taking)
    taking.is_busy()
    stream.tell(1, {"applied": 1.0})
    stream.send()
    assert 1 == taking.row.postponed_from


def test_rows_of_many_streams_are_judged_as_soon_as_there_is_time(taking: Taking) -> None:
    many = begun_many(taking)
    taking.is_busy()
    for stream in many:
        send_rows(stream, 1, 1)
    assert len(many) == taking.waiting_streams
    taking.is_busy(False)
    taking.catch_up()
    assert 0 == taking.waiting_streams


def test_readers_see_that_waiting_rows_were_judged(taking: Taking) -> None:
    stream, store = begun(taking), taking.context.store
    taking.is_busy()
    send_rows(stream, 1, 3)

    def marks() -> tuple[Any, ...]:
        with store.reading() as connection:
            return of_runs.marks_of(connection, [RUN], 0), live.versions(connection, [RUN])

    before = marks()
    taking.is_busy(False)
    taking.catch_up()
    assert all(was != now for was, now in zip(before, marks(), strict=True))


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
    monkeypatch.setattr(postponement, "MAX_WAITING_VALUES", 3 * stream.schema.width)
    taking.is_busy()
    send_rows(stream, 1, 3)
    assert 1 == taking.row.postponed_from
    send_rows(stream, 4, 4)
    assert None is taking.row.postponed_from
    send_rows(stream, 5, 5)
    assert 5 == taking.row.postponed_from


def test_a_stream_of_many_columns_has_fewer_rows_that_wait(taking: Taking, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = begun(taking)
    monkeypatch.setattr(stream_update, "MAX_POSTPONED_VALUES", 2 * stream.schema.width)
    taking.is_busy()
    send_rows(stream, 1, 2)
    assert 1 == taking.row.postponed_from
    send_rows(stream, 3, 3)
    assert (None, 4) == (taking.row.postponed_from, taking.row.counters["steps"])


def test_runs_have_their_own_keys() -> None:
    request = IngestRequest(str(uuid.uuid4()), "s", 0, 1, b"", project="p", named="n")
    assert StreamKey("p", "n", "s") == StreamKey.of(request)
